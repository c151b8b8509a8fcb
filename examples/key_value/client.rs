//! A client: reads by itself, and asks the server to write.

use std::time::{Duration, Instant};

use qpair::transport::{HandlerId, Message};
use qpair::verbs::{Local, RemoteSlice, Rkey};
use qpair::{Buffer, Config, EndpointId, Event, Worker};

use crate::table::{BUCKET, Bucket, KEY, VALUE, place};
use crate::{Outcome, handlers};

pub struct Client {
    worker: Worker,
    ep: EndpointId,
    table: RemoteSlice,
    /// Where buckets are read into, between two reads.
    buffer: Option<Buffer>,
    /// Reads that met a change.
    pub again: usize,
}

impl Client {
    pub fn connect(address: &str) -> Outcome<Client> {
        let mut worker = Worker::new(Config::default())?;
        let ep = worker.connect(address)?;
        while !matches!(event(&mut worker)?, Event::Connected { .. }) {}
        let buffer = Some(worker.domain().alloc(BUCKET)?);
        let table = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
        let mut client = Client { worker, ep, table, buffer, again: 0 };
        let answer = client.ask(handlers::WHERE, b"")?;
        let (words, _) = answer.as_chunks::<8>();
        let &[addr, len, rkey] = words else { return Err("the server is of another kind".into()) };
        let rkey = Rkey(u64::from_le_bytes(rkey) as u32);
        client.table = RemoteSlice { addr: u64::from_le_bytes(addr), len: u64::from_le_bytes(len), rkey };
        Ok(client)
    }

    /// The value of a key: a READ of its bucket, and another if that met a change.
    pub fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let at = place(key);
        let remote = self.table.slice(at.start as u64..at.end as u64);
        loop {
            let buffer = self.buffer.take().ok_or("a read before failed")?;
            self.worker.get(self.ep, remote, buffer, None).map_err(|refused| refused.error)?;
            let Event::Got { memory: Local::Buffer(buffer), .. } = event(&mut self.worker)? else {
                return Err("the read failed".into());
            };
            let bucket = Bucket::read(&buffer);
            self.buffer = Some(buffer);
            match bucket {
                Some(bucket) => return Ok(bucket.get(key).map(<[u8]>::to_vec)),
                None => self.again += 1,
            }
        }
    }

    /// Asks the server to set the value of a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        if key.is_empty() || key.len() > KEY || value.len() > VALUE {
            return Err(format!("keys have 1 to {KEY} bytes, values up to {VALUE}").into());
        }
        let request = [&[key.len() as u8], key, value].concat();
        match self.ask(handlers::PUT, &request)?[..] {
            [1] => Ok(()),
            _ => Err("the server has no room for the key; its bucket is full".into()),
        }
    }

    /// Says goodbye.
    pub fn close(mut self) -> Outcome {
        self.worker.close(self.ep);
        loop {
            match self.worker.wait(Some(Duration::from_secs(10)))? {
                Some(Event::Closed { .. }) => return Ok(()),
                Some(_) => {}
                None => return Err("the server does not let go".into()),
            }
        }
    }

    fn ask(&mut self, handler: HandlerId, data: &[u8]) -> Outcome<Message> {
        self.worker.request_copy(self.ep, handler, data)?;
        match event(&mut self.worker)? {
            Event::Response { message, .. } => Ok(message),
            other => Err(format!("no answer, but {other:?}").into()),
        }
    }
}

/// The next event, which no client waits for long.
fn event(worker: &mut Worker) -> Outcome<Event> {
    let start = Instant::now();
    loop {
        match worker.poll()? {
            Some(Event::Closed { reason, .. }) => return Err(reason.into()),
            Some(Event::Failed { error, .. }) => return Err(error.into()),
            Some(event) => return Ok(event),
            None if start.elapsed() > Duration::from_secs(10) => return Err("no answer within 10 s".into()),
            None => std::thread::yield_now(),
        }
    }
}
