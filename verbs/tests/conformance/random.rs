//! Random mixes of operations against a model: data, order, and each request completing exactly once.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use qpair_verbs::{Access, WcOpcode};

use crate::harness::{Content, Env, Fill, Mem, Origin, Pair, Piece, Region, Work, digest, over_network, turns};

two_sided! {
    random_mixes_do_as_the_model_says,
}

/// Bytes of the target region.
const ROOM: usize = 16 << 10;
const MIXES: u32 = 16;

/// One request. Offsets and lengths are cut to the region.
#[derive(Clone, Debug)]
struct Step {
    what: What,
    offset: usize,
    len: usize,
    seed: u64,
    signaled: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Send,
    SendInline,
    Write,
    WriteInline,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
}

/// What a request must bring back.
struct Expected {
    wr_id: u64,
    opcode: WcOpcode,
    memory: Vec<u8>,
    signaled: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![
        3 => Just(What::Send),
        1 => Just(What::SendInline),
        3 => Just(What::Write),
        1 => Just(What::WriteInline),
        2 => Just(What::WriteImmediate),
        3 => Just(What::Read),
        1 => Just(What::FetchAdd),
        1 => Just(What::CompareSwap),
    ];
    let len = prop_oneof![Just(0), 1..300_usize, 200..240_usize, 4000..4200_usize, 1..ROOM];
    let step = (what, 0..ROOM, len, 0..1000_u64, any::<bool>()).prop_map(|(what, offset, len, seed, signaled)| Step {
        what,
        offset,
        len,
        seed,
        signaled,
    });
    proptest::collection::vec(step, 1..50)
}

fn random_mixes_do_as_the_model_says(env: &Env) {
    let seed = std::env::var("QPAIR_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("random bytes");
        u64::from_le_bytes(bytes)
    });
    eprintln!("QPAIR_TEST_SEED={seed}");
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed.to_le_bytes().repeat(4));
    let config = Config { cases: turns(MIXES), failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    if let Err(error) = runner.run(&steps(), |steps| mix(env, &steps)) {
        panic!("QPAIR_TEST_SEED={seed}: {error}");
    }
}

/// One mix, on a connection of its own.
struct Mix {
    pair: Pair,
    target: Region,
    /// What the target holds once all that was posted is carried out.
    model: Vec<u8>,
    sends: Vec<Expected>,
    /// Number, opcode, immediate data and bytes of the receives.
    receives: Vec<(u64, WcOpcode, Option<u32>, Vec<u8>)>,
}

fn mix(env: &Env, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut pair = env.rc();
    let target = Piece { origin: Origin::Alloc, len: ROOM, fill: Fill::Seed(0) };
    let target = pair.far.expose_piece(target, Access::REMOTE_ALL);
    let inline = pair.near.abilities().max_inline as usize;
    let mut mix = Mix { pair, target, model: Fill::Seed(0).bytes(ROOM), sends: Vec::new(), receives: Vec::new() };
    for (turn, step) in steps.iter().enumerate() {
        let signaled = step.signaled || turn + 1 == steps.len();
        mix.post(turn as u64, step, signaled, inline);
    }
    mix.check()
}

impl Mix {
    fn post(&mut self, wr_id: u64, step: &Step, signaled: bool, inline: usize) {
        let len = step.len.min(match step.what {
            What::SendInline | What::WriteInline => inline,
            _ => ROOM,
        });
        let offset = step.offset.min(ROOM - len);
        let word = step.offset / 8 * 8;
        let part = self.target.part(offset as u64, (offset + len) as u64);
        let word_part = self.target.part(word as u64, word as u64 + 8);
        let data = Fill::Seed(step.seed).bytes(len);
        let (mem, inline) = (Mem::seeded(len, step.seed), Mem::inline(len, step.seed));
        let imm = Some(step.seed as u32);
        let before = u64::from_ne_bytes(self.model[word..word + 8].try_into().unwrap());
        let (work, opcode, memory) = match step.what {
            What::Send => (Work::send(mem).imm(step.seed as u32), WcOpcode::SEND, data.clone()),
            What::SendInline => (Work::send(inline), WcOpcode::SEND, Vec::new()),
            What::Write => (Work::write(mem, part), WcOpcode::RDMA_WRITE, data.clone()),
            What::WriteInline => (Work::write(inline, part), WcOpcode::RDMA_WRITE, Vec::new()),
            What::WriteImmediate => (Work::write(mem, part).imm(step.seed as u32), WcOpcode::RDMA_WRITE, data.clone()),
            What::Read => (Work::read(part), WcOpcode::RDMA_READ, self.model[offset..offset + len].to_vec()),
            What::FetchAdd => {
                (Work::fetch_add(word_part, step.seed), WcOpcode::FETCH_ADD, before.to_ne_bytes().to_vec())
            }
            What::CompareSwap => {
                let compare = if step.seed.is_multiple_of(2) { before } else { before ^ 1 };
                (Work::compare_swap(word_part, compare, step.seed), WcOpcode::COMP_SWAP, before.to_ne_bytes().to_vec())
            }
        };
        match step.what {
            What::Send | What::SendInline => {
                self.pair.far.recv(Mem::blank(len + step.seed as usize % 2), wr_id);
                let imm = if matches!(step.what, What::Send) { imm } else { None };
                self.receives.push((wr_id, WcOpcode::RECV, imm, data));
            }
            What::Write | What::WriteInline => self.model[offset..offset + len].copy_from_slice(&data),
            What::WriteImmediate => {
                self.pair.far.recv(Mem::None, wr_id);
                self.receives.push((wr_id, WcOpcode::RECV_RDMA_WITH_IMM, imm, Vec::new()));
                self.model[offset..offset + len].copy_from_slice(&data);
            }
            What::Read => {}
            What::FetchAdd => {
                let after = before.wrapping_add(step.seed);
                self.model[word..word + 8].copy_from_slice(&after.to_ne_bytes());
            }
            What::CompareSwap if step.seed.is_multiple_of(2) => {
                self.model[word..word + 8].copy_from_slice(&step.seed.to_ne_bytes());
            }
            What::CompareSwap => {}
        }
        // What comes behind a READ or an atomic may overtake it, unless there is a fence. IBA 10.8.3.3.
        let work = if over_network() { work.fenced() } else { work };
        self.pair.near.post(if signaled { work.id(wr_id).signaled() } else { work.id(wr_id) });
        self.sends.push(Expected { wr_id, opcode, memory, signaled });
    }

    fn check(mut self) -> Result<(), TestCaseError> {
        let mut waiting = Vec::new();
        for expected in &self.sends {
            if !expected.signaled {
                waiting.push(expected);
                continue;
            }
            let done = self.pair.near.done();
            prop_assert!(done.status().is_success(), "{done:?}");
            prop_assert_eq!((done.wr_id, done.opcode()), (expected.wr_id, expected.opcode));
            // Requests without memory (inline data) retire unseen.
            let retired = waiting.drain(..).map(|it| &it.memory).filter(|bytes| !bytes.is_empty());
            let found = done.retired.iter().filter(|content| content.len > 0);
            same(retired, found)?;
            same([&expected.memory], [&done.memory])?;
        }
        for (wr_id, opcode, imm, bytes) in &self.receives {
            let done = self.pair.far.done();
            prop_assert!(done.status().is_success(), "{done:?}");
            prop_assert_eq!((done.wr_id, done.opcode(), done.imm), (*wr_id, *opcode, *imm));
            prop_assert!(done.memory.tail_blank);
            same([bytes], [&done.memory])?;
        }
        same([&self.model], [&self.pair.far.look(&self.target)])
    }
}

/// Asserts that the same bytes were found as wanted, in the same order.
fn same<'a>(
    wanted: impl IntoIterator<Item = &'a Vec<u8>>,
    found: impl IntoIterator<Item = &'a Content>,
) -> Result<(), TestCaseError> {
    let wanted: Vec<_> = wanted.into_iter().map(|bytes| (bytes.len(), digest(bytes))).collect();
    let found: Vec<_> = found.into_iter().map(|content| (content.len, content.digest)).collect();
    prop_assert_eq!(wanted, found);
    Ok(())
}
