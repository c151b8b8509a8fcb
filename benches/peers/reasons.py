"""Why a target is missed, by the name of its point. Printed in the Markdown beside each one that is."""

REASONS = {
    "tagged 8 B": "A WRITE takes 1.2x the flag; that a receive is taken and completed adds some 20 ns, the message's header,"
                  " credits and event as much again. `cargo bench -p qpair-transport --bench pingpong -- cost` has the"
                  " parts: 27 ns of code to send and 41 ns to receive, without a wait.",
    "tagged 4 KiB, each timed": "Both hand a message out where one copy has put it, in about the same time: which is ahead"
                                " changes from round to round.",
    "tagged 8 B, in a stream": "To take a message in and hand it out are some 750 instructions of the receiver (callgrind), 80 ns on this"
                               " core, of which 10 to 15 are waits for the message's line; the sender, with 27 ns, waits for it.",
    "WRITE 64 KiB": "Both copy by the same core at the speed of its second-level cache.",
    "SEND 64 KiB": "A run's figure moves between 0.88 and 1.0: a receive is taken, completed and posted again for each message,"
                   " and its lines compete with the message's for the caches.",
    "WRITE 1 MiB": "Both copy as fast as this core can: twice 1 MiB fills its second-level cache, so that each run's figure"
                   " depends on how its pages fall into it, by more than the two differ.",
    "WRITE 16 MiB": "Both copy at the speed of memory.",
}

for _size in ("16 B", "64 B", "256 B"):
    REASONS[f"4 ranks, {_size}"] = ("Two ranks share each core: an operation takes at least two switches of a core, some 0.6 us each, and"
                                    " the rest depends on who comes first.")

# Two ranks whose cores share a cache, by callgrind.
_CODE = ("A message takes 50 ns between cores that share a cache, and the operation as long as its code: some 2,200 instructions,"
         " of which half are the transport's.")
for _operation in ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"):
    for _size in ("8 B",) if _operation == "all-reduce" else ("64 B", "256 B"):
        REASONS[f"{_operation}, 2 ranks, {_size}".replace("all-reduce, ", "")] = _CODE
    for _size in ("1 KiB", "4 KiB", "16 KiB"):
        REASONS[f"{_operation}, 2 ranks, {_size}".replace("all-reduce, ", "")] = _CODE

# By a program that does nothing but copy what the other core has just written, in each of sixteen ways: `memcpy`, `rep movsb`, AVX2
# with lines asked for at several distances, past the caches.
_LINES = ("A core takes lines that another has written at 12 to 18 GB/s on the machine measured last (Xeon, a flag takes 140 ns),"
          " whichever way it copies")
for _operation in ("all-gather", "all-to-all"):
    for _size in ("64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB"):
        REASONS[f"{_operation}, 2 ranks, {_size}"] = f"{_LINES}, and both copy once."
for _size in ("4 MiB", "16 MiB"):
    REASONS[f"2 ranks, {_size}"] = f"{_LINES}; in place each rank takes as many of the other as the vector has, half of them just reduced there."

# Eight ranks on two cores, by `perf record` and `perf stat`.
# From this size on each rank gives to every other.
REASONS["all-to-all, 8 ranks, 16 KiB"] = ("Half of the time are switches between the four ranks of a core, six or seven for all eight ranks"
                                          " together, each of 1.3 us; in the rest each rank makes and takes seven messages.")

# Between hosts, by `perf record`, by the times of the system's calls, and by a program that only sends.
_PACKETS = ("A datagram takes the core that sends 4.7 us, however short it is, from `sendmsg` over the bridge to its socket, and of what"
            " is around it some 2 us are qpair's. An acknowledgment that finds no request to go with is one more.")
_COPIES = ("A datagram of 60 KiB takes the core that sends 7 us in the system, and 4.5 us to be put together, of which the CRC of RoCEv2"
           " and a copy are a third each. What is up to 256 KiB long is copied once more at either end; by TCP it is copied twice in"
           " all.")
for _operation in ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"):
    for _count in (2, 4):
        for _size in ("1 KiB", "4 KiB", "16 KiB", "64 KiB"):
            REASONS[f"{_operation}, {_count} hosts, {_size}"] = _PACKETS
        for _size in ("256 KiB", "1 MiB", "4 MiB", "16 MiB"):
            REASONS[f"{_operation}, {_count} hosts, {_size}"] = _COPIES
