//! Connections that are being made, and those that are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use qpair_roce::wire::cm::Reply;

use super::course::{Course, End, Progress, Words};
use super::id::Id;
use super::known::About;
use super::listener::PRIVATE;
use crate::cm::{CmConnection, ConnectOptions, Ended, Established, padded};
use crate::error::CmError;
use crate::ibv::device::Device;
use crate::qp::{Prepared, QueuePair};
use crate::types::QpType;

/// A connection that is being made. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Connecting {
    side: Side,
    ends: Option<Ends>,
}

#[derive(Debug)]
enum Side {
    /// This end asked, with such a queue pair.
    Asked(Prepared, Words),
    /// This end accepted, with a queue pair that is connected; what the peer said.
    Accepted(QueuePair, Vec<u8>),
    /// It is made, or failed.
    Over,
}

/// What the manager has of a connection.
#[derive(Debug)]
struct Ends {
    id: Id,
    course: Arc<Course>,
    peer: SocketAddr,
}

/// A connection. Dropped, it disconnects, and its queue pair fails.
#[derive(Debug)]
pub(crate) struct Connection {
    ends: Ends,
}

/// Asks a peer for a connection.
pub(crate) fn connect(
    device: &Arc<Device>,
    peer: SocketAddr,
    prepared: Prepared,
    options: &ConnectOptions,
) -> Result<Connecting, CmError> {
    let private = padded::<PRIVATE>(&options.private)?;
    let words = words_of(device, &prepared, &private)?;
    let manager = device.manager()?;
    let course = Arc::new(Course::asking(words.clone()));
    let id = Id::new(&manager, About::Connection(course.clone()), "ask for a connection")?;
    let own = prepared.ibv().and_then(|qp| qp.chosen_address());
    id.resolve_address(own, peer).map_err(|source| CmError::Unreachable { peer, source })?;
    Ok(Connecting { side: Side::Asked(prepared, words), ends: Some(Ends { id, course, peer }) })
}

/// What is said of a queue pair.
pub(super) fn words_of(device: &Device, prepared: &Prepared, private: &[u8]) -> Result<Words, CmError> {
    let qp = prepared.ibv().filter(|qp| qp.is_of(device)).ok_or(CmError::ForeignObject)?;
    match qp.qp_type() {
        QpType::Rc => {}
        QpType::Ud => return Err(CmError::NotConnected),
        QpType::Uc => return Err(CmError::NotReliable { device: device.name().to_owned() }),
    }
    let [retry_count, rnr_retry] = qp.offered_retries();
    Ok(Words {
        qpn: qp.qpn().0,
        reads: qp.offered_reads(),
        retry_count,
        rnr_retry,
        shared_receives: qp.takes_shared_receives(),
        private: private.to_vec(),
    })
}

/// The smaller of both sides' numbers.
pub(super) fn smaller(a: [u8; 2], b: [u8; 2]) -> [u8; 2] {
    [a[0].min(b[0]), a[1].min(b[1])]
}

impl Connecting {
    pub(super) fn accepted(id: Id, course: Arc<Course>, queue_pair: QueuePair, private: Vec<u8>) -> Self {
        let peer = id.peer();
        Connecting { side: Side::Accepted(queue_pair, private), ends: Some(Ends { id, course, peer }) }
    }

    /// The connection, if it is established until then; none: without end.
    pub(crate) fn advance(&mut self, deadline: Option<Instant>) -> Result<Option<Established>, CmError> {
        let ends = self.ends.as_ref().ok_or(CmError::Over)?;
        let Some(progress) = ends.course.wait_for_progress(deadline) else { return Ok(None) };
        let side = std::mem::replace(&mut self.side, Side::Over);
        // Dropped with an error, it is given up.
        let ends = self.ends.take().ok_or(CmError::Over)?;
        match (progress, side) {
            (Progress::Ended(end), _) => Err(ends.error(end)),
            (Progress::Accepted(theirs), Side::Asked(prepared, ours)) => {
                finish(ends, prepared, &ours, theirs).map(Some)
            }
            (Progress::Established, Side::Accepted(queue_pair, private_data)) => {
                let connection = CmConnection::ibv(Connection { ends });
                Ok(Some(Established { queue_pair, private_data, connection }))
            }
            _ => Err(CmError::Over),
        }
    }
}

/// The peer accepted: this end's queue pair is connected, and the peer told that it is.
fn finish(ends: Ends, prepared: Prepared, ours: &Words, theirs: Words) -> Result<Established, CmError> {
    let failed = |source| match ends.course.end() {
        Some(end) => ends.error(end),
        None => CmError::System { what: "finish a connection", source },
    };
    let qp = prepared.ibv().ok_or(CmError::ForeignObject)?;
    let agreed = ends.id.agreed(smaller(ours.reads, theirs.reads)).map_err(failed)?;
    qp.check_agreed(&agreed, ends.id.local())?;
    qp.connect_as_agreed(&agreed)?;
    ends.course.set_queue_pair(qp.leash());
    ends.id.establish().map_err(failed)?;
    let mut private_data = theirs.private;
    private_data.resize(Reply::PRIVATE, 0);
    let queue_pair = prepared.connected();
    Ok(Established { queue_pair, private_data, connection: CmConnection::ibv(Connection { ends }) })
}

impl Ends {
    fn error(&self, end: End) -> CmError {
        end.error(self.peer, self.id.device())
    }
}

impl Connection {
    pub(crate) fn peer(&self) -> SocketAddr {
        self.ends.peer
    }

    pub(crate) fn local(&self) -> IpAddr {
        self.ends.id.local()
    }

    /// How it ended, if it has until then; none: without end.
    pub(crate) fn ended(&self, deadline: Option<Instant>) -> Option<Ended> {
        self.ends.course.wait_for_end(deadline).map(|end| match end {
            End::Rejected(reason, _) => Ended::Rejected(reason),
            End::NoAnswer => Ended::NoAnswer,
            End::Lost(_) => Ended::Lost,
            _ => Ended::Disconnected,
        })
    }

    pub(crate) fn disconnect(&self) {
        self.ends.course.fail();
        self.ends.id.disconnect();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ends.course.fail();
    }
}
