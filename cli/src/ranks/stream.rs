//! Streams of output that say how they get on, so that who waits for their ends can tell one that still gives something from one
//! that is only held open.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::ioctl_fionread;

/// How a stream gets on.
#[derive(Debug, Default)]
pub struct Progress {
    /// Counts the beginnings and ends of reads: it is odd during a read. Between reads, what was read is on its way out.
    steps: AtomicU64,
    /// Nothing is taken any more but what is there.
    closing: AtomicBool,
    over: AtomicBool,
}

/// How far a stream was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step(u64);

/// What is read, with its progress.
#[derive(Debug)]
pub struct Watched<R> {
    from: R,
    progress: Arc<Progress>,
    /// Bytes that may still come, once it is closing.
    left: Option<u64>,
}

impl Progress {
    /// How far the stream is.
    pub fn step(&self) -> Step {
        Step(self.steps.load(Ordering::Relaxed))
    }

    /// Whether it has waited in one read ever since then. Nothing of it is on its way.
    pub fn has_waited_since(&self, step: Step) -> bool {
        step.0 % 2 == 1 && self.step() == step
    }

    /// Has the stream end after what has been written to it by its next read.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// True once it was closed.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Says that all of the stream was passed on, or can not be.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl<R> Watched<R> {
    /// `from`, which tells `progress` how it gets on.
    pub fn new(from: R, progress: Arc<Progress>) -> Self {
        Watched { from, progress, left: None }
    }
}

impl<R: Read + AsFd> Read for Watched<R> {
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        let mut most = part.len();
        if self.progress.closing.load(Ordering::Relaxed) {
            let left = match self.left {
                Some(left) => left,
                None => ioctl_fionread(&self.from)?,
            };
            self.left = Some(left);
            most = usize::try_from(left).map_or(most, |left| most.min(left));
        }
        if most == 0 {
            return Ok(0);
        }
        self.progress.steps.fetch_add(1, Ordering::Relaxed);
        let read = self.from.read(&mut part[..most]);
        self.progress.steps.fetch_add(1, Ordering::Relaxed);
        if let (Some(left), Ok(read)) = (&mut self.left, &read) {
            *left = left.saturating_sub(*read as u64);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, pipe};
    use std::thread;

    use super::*;

    #[test]
    fn one_that_closes_gives_what_is_there_and_no_more() {
        let (reader, mut writer) = pipe().expect("a pipe");
        let progress = Arc::new(Progress::default());
        let mut stream = Watched::new(reader, Arc::clone(&progress));
        writer.write_all(b"there").expect("room");
        progress.close();
        let mut part = [0; 3];
        assert_eq!((stream.read(&mut part).expect("a pipe"), &part), (3, b"the"));
        writer.write_all(b"later").expect("room");
        assert_eq!((stream.read(&mut part).expect("a pipe"), &part[..2]), (2, &b"re"[..]));
        assert_eq!(stream.read(&mut part).expect("its end"), 0);
    }

    #[test]
    fn one_waits_while_it_is_in_a_read() {
        let (reader, mut writer) = pipe().expect("a pipe");
        let progress = Arc::new(Progress::default());
        let begin = progress.step();
        assert!(!progress.has_waited_since(begin), "nothing was read yet");
        let mut stream = Watched::new(reader, Arc::clone(&progress));
        let reading = thread::spawn(move || stream.read(&mut [0; 8]));
        while progress.step() == begin {
            thread::yield_now();
        }
        let waiting = progress.step();
        assert!(progress.has_waited_since(waiting));
        writer.write_all(b"more").expect("room");
        assert_eq!(reading.join().expect("no panic").expect("a pipe"), 4);
        assert!(!progress.has_waited_since(waiting) && !progress.has_waited_since(progress.step()));
    }
}
