# soft0 on this machine, on the network, with Soft-RoCE on the hosts: a part of run, which records what became of each test.
# shellcheck shell=bash disable=SC2154

# perf's test, and options that mean the same to both programs. Each is run with either as the server. Row 2 of the GID
# tables is IPv6 at both.
roce_pairs=(
  "write-bw -s 65536 -n 100"
  "write-bw -s 4096 -n 200 -q 4"
  "write-bw -s 65536 -n 50 -b"
  "write-bw -a -n 5"
  "write-bw -s 65536 -n 50 -m 512"
  "write-bw -s 65536 -n 50 -x 2"
  "write-bw -s 4096 -n 200 -c UC"
  "write-lat -s 8 -n 100"
  "write-lat -s 64 -n 100 -I 0"
  "write-lat -s 8 -n 100 -c UC"
  "read-bw -s 65536 -n 100"
  "read-bw -s 4096 -n 100 -q 2 -b"
  "read-bw -s 65536 -n 50 -m 512 -x 2"
  "read-lat -s 8 -n 100"
  "send-bw -s 65536 -n 100"
  "send-bw -s 4096 -n 100 -q 2 -b"
  "send-bw -s 4096 -n 200 -c UC"
  "send-bw -s 1024 -n 200 -c UD"
  "send-bw -s 1024 -n 200 -c UD -x 2"
  "send-lat -s 128 -n 100 -I 128"
  "send-lat -s 8 -n 100 -x 2"
  "send-lat -s 8 -n 100 -c UC"
  "send-lat -s 8 -n 100 -c UD"
  "atomic-bw -n 100"
  "atomic-bw -n 100 -A CMP_AND_SWAP"
  "atomic-lat -n 100"
)

# Where packets are lost. What is not reliable is left out: messages are lost with the packets.
loss_pairs=(
  "write-bw -s 65536 -n 50"
  "read-bw -s 65536 -n 50"
  "send-bw -s 65536 -n 50 -q 2"
  "atomic-bw -n 200"
  "write-lat -s 8 -n 100"
  "read-lat -s 4096 -n 100 -x 2"
  "send-lat -s 8 -n 100 -x 2"
  "atomic-lat -n 100"
)

# Each operation of each service once.
capture_pairs=(
  "write-bw -s 8192 -n 20"
  "write-bw -s 8192 -n 20 -c UC -x 2"
  "read-bw -s 8192 -n 20"
  "send-bw -s 1000 -n 20 -c UD"
  "send-lat -s 3001 -n 20 -x 2"
  "atomic-lat -n 20"
)

roce() { over_device packets roce_tests; }

roce_tests() {
  roce_all "${roce_pairs[@]}"
  pingpong
  rpings
}

# One packet in 100 is lost on the way to a host, and one in 100 on the way from it.
roce_loss() {
  local n
  for n in 1 2; do
    hosts lose "$n" 1
  done
  roce_all "${loss_pairs[@]}"
  for n in 1 2; do
    hosts lose "$n" 0
  done
  counted "packets lost on the way to soft0 are counted" out_of_sequence implied_nak_seq_err
  counted "packets lost on the way from soft0 are counted" packet_seq_err duplicate_request
}

# That the counters which qpair printed in this step tell of it.
counted() { # test, names of counters
  local name
  for name in "${@:2}"; do
    ! grep -qs "^$name  *+" "$scratch"/{server,client}.3* || { record "$1" passed && return; }
  done
  record "$1" failed "none of ${*:2} changed"
}

# With either of them as the near side, which drives the cases: those in which the sides have most to do with each other.
roce_apart() {
  local served cases=(atomics:: faults:: one_sided:: rnr:: send:: windows::)
  local apart=(--skip one_context --skip two_contexts --skip ::here)
  title="soft0 near: " place=here variables="QPAIR_TEST_FAR_DEVICE=rxe0 QPAIR_TEST_PEER_COMMAND='$here/on-host 1'" \
    rust_tests verbs conformance "${cases[@]}" datagram:: random:: unreliable:: "${apart[@]}"
  hosts serve &
  served=$!
  until hosts local ss -ltnH 'sport = :2222' | grep -q .; do
    kill -0 "$served" || { record "hosts serve" failed "it ended" && return; }
    sleep 0.05
  done
  title="rxe0 near: " variables="QPAIR_TEST_FAR_DEVICE=soft0 QPAIR_TEST_PEER_COMMAND='$here/on-host here'" \
    rust_tests verbs conformance "${cases[@]}" "${apart[@]}"
  kill "$served"
  wait "$served" || true
}

roce_capture() {
  local file=$scratch/capture.pcapng tshark malformed packets
  if ! interruptible hosts also tshark; then
    record capture skipped "no package tshark can be had; install it to see packets decoded"
    return
  fi
  hosts local setpriv --pdeathsig KILL dumpcap -q -i tap1 -f 'udp port 4791' -w "$file" >"$scratch/dumpcap" 2>&1 &
  tshark=$!
  until [[ -s $file ]]; do
    kill -0 "$tshark" || { cat "$scratch/dumpcap"; record capture failed "dumpcap ended" && return; }
    sleep 0.1
  done
  lanes=1 roce_all "${capture_pairs[@]}"
  kill "$tshark"
  wait "$tshark" || true
  packets=$(decoded "$file" infiniband)
  malformed=$(decoded "$file" _ws.malformed)
  say "tshark: $packets packets of InfiniBand, $malformed of them malformed"
  if ((packets > 500 && malformed == 0)); then
    record "tshark decodes all packets" passed
  else
    tshark -r "$file" -Y _ws.malformed 2>/dev/null | head -n 20
    record "tshark decodes all packets" failed "$packets packets of InfiniBand, $malformed malformed"
  fi
  rm -f "$file"
}

decoded() { tshark -r "$1" -Y "$2" 2>/dev/null | wc -l; } # file, filter: packets that it shows

# In lanes, as perftest's pairs: each lane with one of the hosts.
roce_all() { # pairs
  local lane tried running=()
  rm -f "$scratch"/results.[0-9] "$scratch"/{server,client}.3*
  for ((lane = 0; lane < lanes; lane++)); do
    roce_lane "$lane" "$@" &
    running+=($!)
  done
  wait "${running[@]}" || true
  cat "$scratch"/results.[0-9] >>"$scratch/results"
  tried=$(cat "$scratch"/results.[0-9] | wc -l)
  ((tried == 2 * $#)) || record "all pairs" failed "$tried of $((2 * $#)) were tried"
}

roce_lane() { # its number, pairs
  local lane=$1 host=$(($1 % 2 + 1)) port=$((30000 + 1000 * $1)) log=$scratch/results.$1
  local i name options why theirs ours
  shift
  : >"$log"
  for ((i = 1 + lane; i <= $#; i += lanes)); do
    read -r name options <<<"${!i}"
    theirs="ib_${name//-/_} $options" ours="$qpair perf $name $options --counters"
    pair "$name" "$options" "server perftest" "$host" "$theirs" here "$ours"
    pair "$name" "$options" "server qpair" here "$ours --bind 0.0.0.0" "$host" "$theirs"
  done
}

# ibv_rc_pingpong as either side.
pingpong() {
  local why program=$bin/rc_pingpong theirs="ibv_rc_pingpong -d rxe0 -g 1" limit=180
  why=''
  meet 18515 1 "$theirs" here "$program connect --ibv $(address_of 1)"
  conclude "ibv_rc_pingpong, which serves" 18515
  why=''
  meet 18515 here "$program serve --ibv" 1 "$theirs $(address_of here)"
  conclude "ibv_rc_pingpong as the client" 18515
}

# rping, whose connections rdma_cm makes, as either side.
rpings() {
  local why program=$bin/rping limit=180 ready_when=true theirs ours
  for theirs in 10.77.0.11 fd77::11; do
    ours=${theirs%11}1
    why=''
    meet 7174 1 "rping -s -a $theirs -v -C 5" here "$(persistent "$program connect $theirs 5")"
    said_five_times client "rping, which serves at $theirs"
    why=''
    meet 7174 here "$program serve" 1 "$(persistent "rping -c -a $ours -v -C 5")"
    said_five_times client "rping as the client of $ours"
  done
}

# Whoever asks before a server listens is refused, and asks again.
persistent() { printf 'bash -c %q' "until $1; do sleep 0.5; done"; }

said_five_times() { # who, test
  local count
  count=$(grep -c '^ping data: ' "$scratch/$1.7174") || true
  ((count == 5)) || why="${why:+$why, }the $1 printed $count of 5 pings"
  conclude "$2" 7174
}

conclude() { # test, port: records it by `why`
  [[ -n $why ]] || { record "$1" passed && return; }
  tail -n 30 "$scratch/server.$2" "$scratch/client.$2"
  record "$1" failed "$why"
}
