//! What a worker tells of itself for monitoring.

mod support;

use std::collections::HashMap;

use qpair_transport::Tag;
use support::*;

/// The values of a text in Prometheus' format, each with its labels. Each has a type and a help text before it, and stands
/// with all of its name.
fn parse(text: &str) -> HashMap<&str, f64> {
    let (mut values, mut types, mut helps) = (HashMap::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&kind) && !types.contains(&name), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            types.push(name);
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            helps.push(rest.split_once(' ').unwrap().0);
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert_eq!((types.last(), helps.last()), (Some(&name), Some(&name)), "{line}");
            assert_eq!(series.contains('{'), series.ends_with("\"}"), "{line}");
            assert!(values.insert(series, value.parse().unwrap()).is_none(), "{line}");
        }
    }
    assert!(text.ends_with('\n'));
    values
}

#[test]
fn counts_and_states_are_told_in_prometheus_text() {
    let mut pair = Pair::new();
    pair.a.send(pair.ep_a, Tag(1), pattern(10, 1)).unwrap();
    pair.a.send(pair.ep_a, Tag(2), pattern(1 << 20, 2)).unwrap();
    let memory = pair.b.domain().alloc(8).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(3), memory, None).unwrap();
    pair.until(|a, b| sent(a).len() == 2 && received(b).len() == 2);
    let (of_a, of_b) = (pair.a.metrics(), pair.b.metrics());
    assert_eq!((of_a.counters, of_a.endpoints.len()), (pair.a.counters(), 1));
    let (text_a, text_b) = (of_a.to_string(), of_b.to_string());
    let (a, b) = (parse(&text_a), parse(&text_b));
    for protocol in ["eager", "rendezvous"] {
        assert_eq!(a[&*format!("qpair_messages_sent_total{{protocol=\"{protocol}\"}}")], 1.0);
        assert_eq!(b[&*format!("qpair_messages_received_total{{protocol=\"{protocol}\"}}")], 1.0);
    }
    let peer = of_b.endpoints[0].1.peer;
    let posted = format!("qpair_endpoint_posted_receives{{endpoint=\"{}\",peer=\"{peer}\"}}", pair.ep_b);
    assert_eq!((b[&*posted], b["qpair_connections"]), (1.0, 1.0));
    let bytes = (1 << 20) as f64 + 10.0;
    let of_endpoint = |name, peer, ep| format!("qpair_endpoint_{name}{{endpoint=\"{ep}\",peer=\"{peer}\"}}");
    assert_eq!(a[&*of_endpoint("sent_bytes_total", of_a.endpoints[0].1.peer, pair.ep_a)], bytes);
    assert_eq!(b[&*of_endpoint("received_bytes_total", peer, pair.ep_b)], bytes);
    assert_eq!(b[&*of_endpoint("received_messages_total", peer, pair.ep_b)], 2.0);
    let history = pair.a.explain(pair.ep_a).unwrap().history.to_string();
    let told: Vec<_> = history.lines().map(|line| line.split_once(": ").unwrap().1).collect();
    assert!(
        matches!(told[..], ["the peer took the call, said hello", "connected", "offers 65536, 1048576 bytes", read]
        if read.starts_with("the peer has read")),
        "{history}"
    );
    pair.b.abort(pair.ep_b);
    pair.until(|a, b| count(a, is_closed) == 1 && count(b, is_closed) == 1);
    let text = pair.a.metrics().to_string();
    let gone = parse(&text);
    assert_eq!((gone["qpair_connections_lost_total"], gone["qpair_connections"]), (1.0, 0.0));
}
