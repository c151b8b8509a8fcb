//! What every element of every buffer holds, followed through the plan.

use super::contract::{Part, Promises, given};
use super::error::{OutputFault, VerifyError};
use super::matching::Matching;
use super::most_followed;
use super::order::{Order, Orders};
use super::rank_set::{Allowance, RankSet};
use super::replay::{At, Event, replay};
use crate::pieces::Pieces;
use crate::plan::{Buffers, Plan, Program, Slice, Spec, StepKind};

/// Checks that every rank ends with what the collective promises. Gives whether all contributions are combined in the
/// canonical order.
///
/// Where there are no races, which are looked for elsewhere, any legal order of its steps gives the same contents.
pub(super) fn check(plan: &Plan, matching: &Matching) -> Result<bool, VerifyError> {
    let memory = plan.by_rank().map(|(rank, program)| initial(&plan.spec, rank, program)).collect();
    let combinations = Combinations::of(plan);
    let mut all = All { plan, memory, combinations, parts: Vec::new(), followed: Followed::of(plan) };
    replay(plan, matching, |event| match event {
        Event::Local(at, StepKind::Finish { dst }) => all.finish(at, dst),
        Event::Local(at, kind) => all.apply((at, kind), (at, kind)),
        Event::Transfer { send, recv } => all.apply(send, recv),
    })?;
    all.outputs()
}

/// What an element holds, if anything: the combination of some ranks' contributions to one element.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// The element is the one held's position plus this, wrapping.
    shift: u64,
    what: Id,
    finished: bool,
}

const NOTHING: Held = Held { shift: 0, what: Id(u32::MAX), finished: false };

/// Of a [`Combination`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id(u32);

impl Held {
    fn is_nothing(&self) -> bool {
        self.what == NOTHING.what
    }
}

/// Some ranks' contributions, combined.
#[derive(Debug, Clone)]
struct Combination {
    ranks: RankSet,
    order: Order,
}

/// Parts of buffers that were moved or combined by themselves, bounded: where what a step takes was put together of ever more
/// parts, these are a power of the steps.
struct Followed {
    parts: usize,
    limit: usize,
}

impl Followed {
    /// Beside what steps take, each rank may be given a part of each, which is moved a few times: an all-gather's blocks stay apart.
    fn of(plan: &Plan) -> Self {
        let ranks = plan.spec.ranks.0 as usize;
        Self { parts: 0, limit: most_followed(plan.total_steps()) + (4 * ranks * ranks).min(MOST_GIVEN) }
    }

    /// One more, which that step takes.
    #[inline]
    fn one(&mut self, At { rank, step }: At) -> Result<(), VerifyError> {
        self.parts += 1;
        if self.parts > self.limit { Err(VerifyError::Reads { rank, step, limit: self.limit }) } else { Ok(()) }
    }
}

/// Parts that ranks are given at most beside what steps take: as many as 4096 ranks need.
const MOST_GIVEN: usize = 1 << 26;

/// All combinations that were made: what elements hold is a number, so that it is little to move. Those of one rank have its
/// number, and are not kept.
struct Combinations {
    ranks: u32,
    /// How many are kept at most, so that each has a number, and a plan that combines the same over and over in other parts is
    /// refused before memory runs out.
    limit: usize,
    made: Vec<Combination>,
    /// What their sets may take yet.
    bytes: Allowance,
    /// The last that was made, and of which: a step mostly combines the same in several pieces.
    last: Option<([Id; 2], Id)>,
}

impl Combinations {
    fn of(plan: &Plan) -> Self {
        let ranks = plan.spec.ranks.0;
        let limit = most_followed(plan.total_steps()).min((NOTHING.what.0 - ranks) as usize);
        Self { ranks, limit, made: Vec::new(), bytes: Allowance::for_steps(plan.total_steps()), last: None }
    }

    fn ranks(&self, id: Id) -> RankSet {
        match id.0.checked_sub(self.ranks) {
            None => RankSet::one(id.0),
            Some(made) => self.made[made as usize].ranks.clone(),
        }
    }

    fn order(&self, id: Id) -> Order {
        match id.0.checked_sub(self.ranks) {
            None => Order::of(id.0),
            Some(made) => self.made[made as usize].order,
        }
    }

    /// Both combined; or the rank whose contribution both have.
    fn both(&mut self, one: Id, other: Id) -> Result<Id, Refusal> {
        if let Some((of, made)) = self.last
            && of == [one, other]
        {
            return Ok(made);
        }
        let (own, new) = (self.ranks(one), self.ranks(other));
        if let Some(contributor) = own.first_common(&new) {
            return Err(Refusal::Common(contributor));
        }
        if self.made.len() >= self.limit {
            return Err(Refusal::Many);
        }
        let (made, ranks) = (Id(self.ranks + self.made.len() as u32), own.union(&new));
        if !self.bytes.takes(&ranks) {
            return Err(Refusal::Large);
        }
        self.made.push(Combination { ranks, order: self.order(one).with(self.order(other)) });
        self.last = Some(([one, other], made));
        Ok(made)
    }
}

/// Why two can not be combined.
enum Refusal {
    /// Both have the contribution of that rank.
    Common(u32),
    /// There are too many already.
    Many,
    /// They take too much memory already.
    Large,
}

/// A rank's buffers.
type Memory = Buffers<Pieces<Held>>;

/// What a rank's buffers hold before its first step.
fn initial(spec: &Spec, rank: u32, program: &Program) -> Memory {
    let mut memory = spec.sizes(rank, program).map(|len| Pieces::new(len, NOTHING));
    let Part { slice, shift, .. } = given(spec, rank);
    memory[slice.buffer].set(slice.offset, slice.offset + slice.len, Held { shift, what: Id(rank), finished: false });
    memory
}

struct All<'a> {
    plan: &'a Plan,
    memory: Vec<Memory>,
    combinations: Combinations,
    /// What a step moves: from, to, and what it holds. Kept, so that it is not allocated each time.
    parts: Vec<(u64, u64, Held)>,
    followed: Followed,
}

impl All<'_> {
    /// Moves what `reader` reads to where `writer` writes; the two are one step, or sides of a message.
    fn apply(&mut self, (reader, read): (At, StepKind), (writer, write): (At, StepKind)) -> Result<(), VerifyError> {
        let (Some(src), Some(dst), reduce) = (read.src(), write.dst(), write.is_reduction()) else {
            return Ok(());
        };
        // What comes from position p goes to p - src.offset + dst.offset.
        let moved = src.offset.wrapping_sub(dst.offset);
        let Self { memory, parts, combinations, followed, .. } = self;
        parts.clear();
        let source = &mut memory[reader.rank as usize][src.buffer];
        source.read(src.offset, src.offset + src.len, |from, to, held| {
            if held.is_nothing() {
                return Err(VerifyError::Undefined {
                    rank: reader.rank,
                    step: reader.step,
                    slice: part(src, from, to),
                });
            }
            followed.one(reader)?;
            let held = Held { shift: held.shift.wrapping_add(moved), ..*held };
            parts.push((from.wrapping_sub(moved), to.wrapping_sub(moved), held));
            Ok(())
        })?;
        let target = &mut memory[writer.rank as usize][dst.buffer];
        for (from, to, new) in parts.drain(..) {
            if reduce {
                target.visit(from, to, |from, to, held| {
                    followed.one(writer)?;
                    combine(writer, part(dst, from, to), held, &new, combinations)
                })?;
            } else {
                target.set(from, to, new);
            }
        }
        Ok(())
    }

    fn finish(&mut self, at: At, dst: Slice) -> Result<(), VerifyError> {
        let (wanted, all) = (self.plan.spec.finish, RankSet::all(self.plan.spec.ranks.0));
        let target = &mut self.memory[at.rank as usize][dst.buffer];
        target.visit(dst.offset, dst.offset + dst.len, |from, to, held| {
            let slice = part(dst, from, to);
            if held.is_nothing() {
                return Err(VerifyError::Undefined { rank: at.rank, step: at.step, slice });
            }
            if !wanted || held.finished || self.combinations.ranks(held.what) != all {
                return Err(VerifyError::Finish { rank: at.rank, step: at.step, slice });
            }
            held.finished = true;
            Ok(())
        })
    }

    /// Checks all results. Gives whether they are combined in the canonical order.
    fn outputs(self) -> Result<bool, VerifyError> {
        let spec = &self.plan.spec;
        let mut promises = Promises::new(spec);
        let mut orders = Orders::of(spec);
        for (rank, memory) in (0..).zip(self.memory) {
            output(spec, rank, memory, promises.next(rank), &self.combinations, &mut orders)?;
        }
        Ok(orders.are_canonical())
    }
}

/// Checks a rank's result.
fn output(
    spec: &Spec,
    rank: u32,
    mut memory: Memory,
    promised: Vec<Part>,
    combinations: &Combinations,
    orders: &mut Orders,
) -> Result<(), VerifyError> {
    for want in promised {
        let Slice { offset, len, buffer } = want.slice;
        memory[buffer].read(offset, offset + len, |from, to, held| {
            let mut fault = fault(held, &want, combinations, spec.finish);
            if fault.is_none() && spec.collective.reduces() {
                let place = (from - offset, to - offset);
                let is_right = orders.note(rank, place, combinations.order(held.what));
                fault = (!is_right).then_some(OutputFault::Differs);
            }
            let slice = part(want.slice, from, to);
            fault.map_or(Ok(()), |fault| Err(VerifyError::Output { rank, slice, fault }))
        })?;
    }
    Ok(())
}

/// What is wrong with what is held where `want` was promised.
fn fault(held: &Held, want: &Part, combinations: &Combinations, finished: bool) -> Option<OutputFault> {
    if held.is_nothing() {
        return Some(OutputFault::Undefined);
    }
    if held.shift != want.shift {
        return Some(OutputFault::Misplaced);
    }
    let ranks = combinations.ranks(held.what);
    if let Some(missing) = want.ranks.first_beyond(&ranks) {
        return Some(OutputFault::Missing(missing));
    }
    if let Some(foreign) = ranks.first_beyond(&want.ranks) {
        return Some(OutputFault::Foreign(foreign));
    }
    (held.finished != finished).then_some(OutputFault::Unfinished)
}

/// Combines `new` into what is held.
fn combine(
    at: At,
    slice: Slice,
    held: &mut Held,
    new: &Held,
    combinations: &mut Combinations,
) -> Result<(), VerifyError> {
    let At { rank, step } = at;
    if held.is_nothing() {
        return Err(VerifyError::Undefined { rank, step, slice });
    }
    if held.shift != new.shift {
        return Err(VerifyError::Misplaced { rank, step, slice });
    }
    let both = combinations.both(held.what, new.what);
    held.what = both.map_err(|refusal| match refusal {
        Refusal::Common(contributor) => VerifyError::Duplicate { rank, step, contributor, slice },
        Refusal::Many => VerifyError::Reads { rank, step, limit: combinations.limit },
        Refusal::Large => VerifyError::Sets { rank, step, limit: combinations.bytes.limit },
    })?;
    if held.finished || new.finished {
        return Err(VerifyError::Finish { rank, step, slice });
    }
    Ok(())
}

fn part(whole: Slice, from: u64, to: u64) -> Slice {
    Slice { offset: from, len: to - from, ..whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Recipe};
    use crate::plan::{Collective, Elements, FORMAT, Ranks};

    /// Of scratch that is put together of ever more parts, all of which are copied by the next step.
    #[test]
    fn parts_that_double_with_each_step_are_bounded() {
        let of = |doublings: u32| {
            let spec = Spec::all_reduce(Ranks(1), Elements(1 << 26), 1);
            let mut program = Program::new();
            let copy = |src, dst| StepKind::Copy { src, dst };
            program.push(copy(Slice::data(0, 1), Slice::scratch(0, 1)), []);
            program.push(copy(Slice::data(0, 1), Slice::scratch(1, 1)), []);
            for power in 1..doublings {
                let half = 1 << power;
                program.push(copy(Slice::scratch(0, half), Slice::scratch(half, half)), 0..=power);
            }
            Plan { format: FORMAT, spec, algorithm: "doubling".into(), programs: vec![program] }.verify()
        };
        assert!(of(12).is_ok());
        let refused = of(24);
        assert!(matches!(refused, Err(VerifyError::Reads { rank: 0, step: 21, .. })), "{refused:?}");
    }

    /// Each rank ends with a part of each, by few steps.
    #[test]
    fn blocks_of_very_many_ranks_are_followed() {
        for algorithm in [Algorithm::Flat, Algorithm::Bruck] {
            let spec = Spec::new(Collective::AllGather, Ranks(1300), Elements(1), 4);
            let plan = Recipe::new(spec, algorithm).unwrap().plan();
            assert!(check(&plan, &Matching::of(&plan).unwrap()).is_ok(), "{algorithm}");
        }
    }

    #[test]
    fn combinations_are_made_once_in_a_row_and_bounded() {
        let bytes = Allowance::for_steps(0);
        let mut all = Combinations { ranks: 6, limit: 2, made: Vec::new(), bytes, last: None };
        let both = |all: &mut Combinations, one, other| all.both(Id(one), Id(other)).map(|made| made.0);
        assert!(matches!(both(&mut all, 3, 3), Err(Refusal::Common(3))));
        assert!(matches!([both(&mut all, 0, 1), both(&mut all, 0, 1)], [Ok(6), Ok(6)]));
        assert!(matches!(both(&mut all, 6, 2), Ok(7)));
        assert!(matches!(both(&mut all, 7, 1), Err(Refusal::Common(1))));
        assert!(matches!(both(&mut all, 4, 5), Err(Refusal::Many)));
        assert_eq!(all.ranks(Id(7)), RankSet::all(3));
    }
}
