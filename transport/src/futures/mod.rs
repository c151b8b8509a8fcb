//! A worker for async programs, on any runtime.
//!
//! An [`AsyncWorker`] is a [`Worker`](crate::Worker) whose operations are futures. It belongs to one thread, as a worker does;
//! clones of it are the same worker. One task runs [`drive`](AsyncWorker::drive), which polls while there is something to do
//! and sleeps otherwise; what it sleeps with is a [`Sleeper`]: the [`Thread`] that comes with it works on every runtime, one
//! on the runtime's own reactor is a few lines (see the example `async_echo`).
//!
//! A future may be dropped at any point. Its operation is cancelled if it still can be; if a device or the peer has its
//! memory, the memory stays where it is until they are done, and is dropped then.
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::task::{Context, Poll, Waker};
//!
//! use qpair_transport::futures::{AsyncWorker, Thread};
//! use qpair_transport::{Config, Tag, Unmatched, Worker};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = AsyncWorker::new(Worker::new(Config::default().unmatched(Unmatched::Hold))?);
//! let server = worker.listen("127.0.0.1:0")?;
//!
//! let talk = async {
//!     let ep = worker.connect(server.local_addr()).await?;
//!     let back = worker.accept().await?;
//!     worker.send(ep, Tag(7), &b"hello"[..]).await?;
//!     let (_, message) = worker.recv(back, Tag(7)).await?;
//!     assert_eq!(&message[..], b"hello");
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//!
//! // Any runtime would do; this is about the least one.
//! let (mut talk, mut drive) = (pin!(talk), pin!(worker.drive(Thread::new()?)));
//! let mut context = Context::from_waker(Waker::noop());
//! loop {
//!     if let Poll::Ready(result) = talk.as_mut().poll(&mut context) {
//!         result?;
//!         break;
//!     }
//!     let _ = drive.as_mut().poll(&mut context);
//! }
//! # Ok(())
//! # }
//! ```

mod drive;
mod error;
mod operation;
mod shared;
mod sleeper;
#[cfg(test)]
mod tests;
mod turn;
mod worker;

pub use error::{Failed, Refused};
pub use sleeper::{Sleeper, Thread};
pub use worker::AsyncWorker;
