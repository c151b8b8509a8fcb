//! Two ports that a script drives: it posts, lets packets through, loses, repeats, changes and forges them, and lets time pass.
//! Whatever it does, nothing panics, and each request completes once.

mod device;
mod end;
mod forged;
mod op;
mod play;

use arbitrary::{Arbitrary, Unstructured};

use self::op::Script;
use self::play::Play;

/// Plays the script that the input is.
pub fn engine(input: &[u8]) {
    if let Ok(script) = Script::arbitrary_take_rest(Unstructured::new(input)) {
        let mut play = Play::new(&script.setup);
        for op in script.ops.iter().take(MOST) {
            play.act(op);
        }
        play.finish();
    }
}

/// Steps of a script. More do not find more, and take longer.
const MOST: usize = 150;
