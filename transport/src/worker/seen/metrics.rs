//! A worker's counts and states for monitoring.

use std::fmt;

use super::counters::Counters;
use super::explain::Explanation;
use crate::worker::Worker;
use crate::worker::ids::EndpointId;

/// A worker's counters and how its connections stand, at one moment. Printed it is Prometheus' text format, version 0.0.4
/// (<https://prometheus.io/docs/instrumenting/exposition_formats/>), for whatever serves that.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// What was done so far.
    pub counters: Counters,
    /// Requests that wait for their answers.
    pub requests: usize,
    /// The connections.
    pub endpoints: Vec<(EndpointId, Explanation)>,
}

/// How a value behaves.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    /// It only grows.
    Counter,
    /// It comes and goes.
    Gauge,
}

/// Something that each connection has: its name, what it is, and its value.
type State = (&'static str, &'static str, fn(&Explanation) -> u64);

impl Worker {
    /// Counters and connections as of now, for monitoring. Allocates: not for the data path.
    ///
    /// ```
    /// use qpair_transport::{Config, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let worker = Worker::new(Config::default())?;
    /// let text = worker.metrics().to_string();
    /// assert!(text.contains("qpair_messages_sent_total{protocol=\"eager\"} 0\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn metrics(&self) -> Metrics {
        let endpoints = self.endpoints.iter();
        let endpoints = endpoints.map(|endpoint| (endpoint.id, Explanation::of(endpoint, &self.inbox))).collect();
        Metrics { counters: self.counters(), requests: self.calls.len(), endpoints }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counters {
            eager_sent,
            rendezvous_sent,
            eager_received,
            rendezvous_received,
            credits_sent,
            queued,
            rejected,
            lost,
            recovered,
            rails_used,
            rails_lost,
            packets_repeated,
            packets_stray,
            bytes_copied,
            registered,
            reused,
            late_answers,
        } = self.counters;
        let by_protocol = |name, help, eager: u64, rendezvous: u64, f: &mut fmt::Formatter<'_>| {
            head(f, name, Behaviour::Counter, help)?;
            writeln!(f, "{name}{{protocol=\"eager\"}} {eager}")?;
            writeln!(f, "{name}{{protocol=\"rendezvous\"}} {rendezvous}")
        };
        let sent = "Messages sent: copied to the peer, or offered to it for reading.";
        by_protocol("qpair_messages_sent_total", sent, eager_sent, rendezvous_sent, f)?;
        let received = "Messages received: by copy, or by reading.";
        by_protocol("qpair_messages_received_total", received, eager_received, rendezvous_received, f)?;
        for (name, help, value) in [
            (
                "qpair_credit_messages_sent_total",
                "Messages that went for nothing but to give credits back.",
                credits_sent,
            ),
            ("qpair_messages_queued_total", "Messages that had to wait before they could be sent.", queued),
            ("qpair_copied_bytes_total", "Bytes of messages that this side copied.", bytes_copied),
            ("qpair_registrations_total", "Times that memory of messages was registered.", registered),
            ("qpair_registrations_reused_total", "Times that registered memory was sent again.", reused),
            ("qpair_late_answers_total", "Answers to requests that nobody waited for any more.", late_answers),
            ("qpair_handshakes_rejected_total", "Handshakes of peers that failed.", rejected),
            ("qpair_connections_lost_total", "Connections lost, or ended by an error.", lost),
            (
                "qpair_connections_recovered_total",
                "Times that a connection went on over another queue pair.",
                recovered,
            ),
            ("qpair_rails_used_total", "Times that a rail came into use, at first or again.", rails_used),
            ("qpair_rails_lost_total", "Times that a rail was left out.", rails_lost),
            ("qpair_packets_repeated_total", "Packets over datagrams that were sent again.", packets_repeated),
            ("qpair_packets_stray_total", "Packets that came over datagrams for no connection.", packets_stray),
        ] {
            head(f, name, Behaviour::Counter, help)?;
            writeln!(f, "{name} {value}")?;
        }
        head(f, "qpair_open_requests", Behaviour::Gauge, "Requests that wait for their answers.")?;
        writeln!(f, "qpair_open_requests {}", self.requests)?;
        head(f, "qpair_connections", Behaviour::Gauge, "Connections, also those that begin or end.")?;
        writeln!(f, "qpair_connections {}", self.endpoints.len())?;
        let traffic: [State; 4] = [
            ("qpair_endpoint_sent_messages_total", "Messages that the application sent.", |of| of.sent.messages),
            ("qpair_endpoint_sent_bytes_total", "Their bytes.", |of| of.sent.bytes),
            ("qpair_endpoint_received_messages_total", "Messages that came for it.", |of| of.received.messages),
            ("qpair_endpoint_received_bytes_total", "Their bytes.", |of| of.received.bytes),
        ];
        let states: [State; 5] = [
            ("qpair_endpoint_credits", "Messages that may be sent now.", |of| of.credits.into()),
            ("qpair_endpoint_queued_messages", "Messages that wait for credits.", |of| of.queued as u64),
            ("qpair_endpoint_offered_messages", "Payloads that the peer has still to read.", |of| of.offered as u64),
            ("qpair_endpoint_posted_receives", "Posted receives without a message.", |of| of.posted as u64),
            ("qpair_endpoint_waiting_messages", "Messages that wait to be delivered.", |of| of.waiting as u64),
        ];
        let traffic = traffic.into_iter().map(|state| (Behaviour::Counter, state));
        let states = states.into_iter().map(|state| (Behaviour::Gauge, state));
        for (behaviour, (name, help, value)) in traffic.chain(states) {
            head(f, name, behaviour, help)?;
            for (id, of) in &self.endpoints {
                writeln!(f, "{name}{{endpoint=\"{id}\",peer=\"{}\"}} {}", of.peer, value(of))?;
            }
        }
        Ok(())
    }
}

/// What stands before the values of a name.
fn head(f: &mut fmt::Formatter<'_>, name: &str, behaviour: Behaviour, help: &str) -> fmt::Result {
    let behaviour = match behaviour {
        Behaviour::Counter => "counter",
        Behaviour::Gauge => "gauge",
    };
    writeln!(f, "# HELP {name} {help}")?;
    writeln!(f, "# TYPE {name} {behaviour}")
}
