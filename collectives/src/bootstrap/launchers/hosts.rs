//! Slurm's lists of hosts: `node[01-04,7],gpu-a[1,3-5]b2`.

/// The hosts of a list, in its order. `None` if it is none, names more than [`MOST`], or one longer than [`LONGEST`].
pub(super) fn parse(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for part in split(list)? {
        expand(part, String::new(), &mut hosts)?;
    }
    Some(hosts).filter(|hosts| !hosts.is_empty())
}

/// Parts between commas that stand in no bracket.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if is_inside => return None,
            '[' => is_inside = true,
            ']' if !is_inside => return None,
            ']' => is_inside = false,
            ',' if !is_inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    Some(parts).filter(|_| !is_inside)
}

/// What a part stands for, each after `before`. Each bracket makes the name longer, whose limit thus is that of the depth.
fn expand(part: &str, before: String, hosts: &mut Vec<String>) -> Option<()> {
    let Some((text, rest)) = part.split_once('[') else {
        let host = before + part;
        let is_room = hosts.len() < MOST && host.len() <= LONGEST;
        let is_host = is_room && !host.is_empty() && !host.contains(char::is_whitespace);
        hosts.push(host);
        return is_host.then_some(());
    };
    let (ranges, rest) = rest.split_once(']')?;
    if before.len() + text.len() >= LONGEST {
        return None;
    }
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // Zeros in front are part of the name.
        let width = first.len();
        let (first, last) = (digits(first)?, digits(last)?);
        if last < first || last - first >= MOST as u64 || width > LONGEST {
            return None;
        }
        for number in first..=last {
            expand(rest, format!("{before}{text}{number:0width$}"), hosts)?;
        }
    }
    Some(())
}

fn digits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// More hosts than a job has.
const MOST: usize = 1 << 16;
/// More bytes than the name of a host has: DNS allows 253.
const LONGEST: usize = 255;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn brackets_stand_for_numbers() {
        let all = |list| parse(list).unwrap().join(" ");
        assert_eq!(all("node1"), "node1");
        assert_eq!(
            all("node[01-04,7],gpu-a[1,3-5]b2"),
            "node01 node02 node03 node04 node7 gpu-a1b2 gpu-a3b2 gpu-a4b2 gpu-a5b2"
        );
        assert_eq!(all("a,b[9-11]"), "a b9 b10 b11");
        assert_eq!(all("r[1-2]n[1-2]"), "r1n1 r1n2 r2n1 r2n2");
        assert_eq!(
            all("n[098-101].example.org"),
            "n098.example.org n099.example.org n100.example.org n101.example.org"
        );
    }

    #[test]
    fn what_is_no_list_is_nothing() {
        for list in
            ["", "a,", "a[", "a]", "a[]", "a[1-]", "a[-1]", "a[2-1]", "a[x]", "a[[1]]", "a[+1]", "a[1-99999999999]"]
        {
            assert_eq!(parse(list), None, "{list}");
        }
        // Numbers of numbers of numbers.
        assert_eq!(parse("a[0-999][0-999][0-999]"), None);
    }

    #[test]
    fn what_takes_too_much_memory_is_nothing() {
        let zeros = |digits: usize| format!("a[{}0-65535]", "0".repeat(digits));
        assert_eq!(parse(&zeros(200)).unwrap().len(), MOST);
        // Wide, deep, and many.
        for list in [zeros(LONGEST), zeros(1 << 17), "a".repeat(1 << 17), "[0]".repeat(1 << 17), "a,".repeat(1 << 17)] {
            assert_eq!(parse(&list), None, "{} bytes", list.len());
        }
        assert_eq!(parse("a[0-99999999999]"), None);
        assert_eq!(parse("a[0-18446744073709551615]"), None);
        assert_eq!(parse("a[0-65536]"), None);
        assert_eq!(parse("[0-65535],a"), None);
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(list in "[a-c0-9,\\[\\]-]{0,24}") {
            if let Some(hosts) = parse(&list) {
                prop_assert!(hosts.len() <= MOST && hosts.iter().all(|host| !host.contains(['[', ']', ','])));
            }
        }
    }
}
