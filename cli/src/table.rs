//! Tables for people: rows that come one by one under a fixed header, and whole tables.

use std::borrow::Cow;

/// A column of a [`RowTable`], aligned to the right.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// What stands in it.
    pub name: &'static str,
    /// The unit in parentheses, or empty.
    pub unit: &'static str,
    /// Characters that the widest cell is expected to take.
    pub width: usize,
}

impl Column {
    fn width(&self) -> usize {
        self.width.max(self.name.len()).max(self.unit.len())
    }
}

/// A table whose rows are made one by one. The header starts with `#`, so that tools skip it.
#[derive(Clone, Debug)]
pub struct RowTable {
    columns: Vec<Column>,
}

impl RowTable {
    /// A table with these columns.
    pub fn new(columns: &[Column]) -> Self {
        RowTable { columns: columns.to_vec() }
    }

    /// A line to stand above the header: names of groups of columns, each with the number of its first column.
    pub fn groups(&self, groups: impl IntoIterator<Item = (usize, &'static str)>) -> String {
        groups.into_iter().fold("#".to_owned(), |line, (first, name)| {
            let width = self.columns.iter().take(first).map(|column| column.width() + 2).sum::<usize>() + 2;
            format!("{line:width$}{name}")
        })
    }

    /// Two lines: names, and units below them.
    pub fn header(&self) -> String {
        let names = self.line(self.columns.iter().map(|column| column.name.into()));
        let units = self.line(self.columns.iter().map(|column| column.unit.into()));
        // The mark takes the place of the first blank.
        let marked = |line: &str| format!("#{}", line.get(1..).unwrap_or_default());
        format!("{}\n{}", marked(&names), marked(&units))
    }

    /// One line. Cells wider than their column push the rest to the right and stay apart.
    pub fn row(&self, cells: &[String]) -> String {
        self.line(cells.iter().map(|cell| cell.as_str().into()))
    }

    fn line<'a>(&self, cells: impl Iterator<Item = Cow<'a, str>>) -> String {
        let padded = self.columns.iter().zip(cells).map(|(column, cell)| {
            let width = column.width();
            format!("  {cell:>width$}")
        });
        padded.collect::<String>().trim_end().to_owned()
    }
}

/// A whole table of left-aligned columns without lines, whose widths follow their cells.
pub fn whole(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(header.to_vec());
    table.add_rows(rows);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { name: "size", unit: "(B)", width: 6 },
        Column { name: "type", unit: "", width: 4 },
        Column { name: "time", unit: "(us)", width: 8 },
    ];

    fn cells(texts: [&str; 3]) -> Vec<String> {
        texts.map(str::to_owned).to_vec()
    }

    #[test]
    fn names_units_and_cells_line_up_on_the_right() {
        let table = RowTable::new(&COLUMNS);
        let text = format!("{}\n{}", table.header(), table.row(&cells(["8", "f32", "1.25"])));
        assert_eq!(text, "#   size  type      time\n#    (B)            (us)\n       8   f32      1.25");
    }

    #[test]
    fn a_wide_cell_stays_apart_from_its_neighbours() {
        let line = RowTable::new(&COLUMNS).row(&cells(["12345678", "f32", "1.25"]));
        assert_eq!(line, "  12345678   f32      1.25");
    }

    #[test]
    fn a_trailing_empty_unit_leaves_no_blanks() {
        let columns = [Column { name: "wrong", unit: "", width: 7 }];
        assert_eq!(RowTable::new(&columns).header(), "#   wrong\n#");
    }

    #[test]
    fn groups_stand_above_their_first_columns() {
        let line = RowTable::new(&COLUMNS).groups([(1, "in"), (2, "time")]);
        assert_eq!(line, "#         in    time");
    }

    #[test]
    fn whole_tables_follow_their_cells() {
        let rows = vec![vec!["soft0".to_owned(), "1".to_owned()], vec!["a-long-name".to_owned(), "2".to_owned()]];
        let text = whole(&["device", "port"], rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let column = lines[0].find("port").expect("the header");
        assert_eq!(lines[1].find('1'), Some(column));
        assert_eq!(lines[2].find('2'), Some(column));
        assert!(lines.iter().all(|line| !line.ends_with(' ')));
    }
}
