# qpair perf with the programs of perftest, in both roles: a part of run, which records what became of each.
# shellcheck shell=bash disable=SC2154

# The test's name, `both` for within a host and between two or `apart` for only the latter, and options that mean the
# same to both programs.
pairs=(
  "write-bw   both   -s 65536 -n 100"
  "write-bw   apart  -s 4096 -n 200 -q 2"
  "write-bw   apart  -s 65536 -n 50 -b"
  "write-bw   apart  -s 4096 -n 200 -c UC"
  "write-bw   apart  -a -n 5"
  "write-bw   apart  -s 65536 -D 4"
  "write-bw   apart  -s 65536 -n 100 --report_gbits -b"
  "write-bw   apart  -s 65536 -n 100 -m 512 -t 16 -Q 4"
  "write-lat  both   -s 8 -n 100"
  "write-lat  apart  -s 8 -n 100 -c UC"
  "read-bw    both   -s 65536 -n 100"
  "read-bw    apart  -s 65536 -n 50 -b"
  "read-lat   both   -s 8 -n 100"
  "read-lat   apart  -s 4096 -D 2"
  "send-bw    both   -s 65536 -n 100"
  "send-bw    apart  -s 4096 -n 100 -b"
  "send-bw    apart  -s 4096 -n 200 -r 64"
  "send-bw    apart  -s 4096 -n 200 -c UC"
  "send-bw    apart  -s 1024 -n 200 -c UD"
  "send-lat   both   -s 8 -n 100"
  "send-lat   apart  -s 1024 -n 100 -x 1"
  "send-lat   apart  -s 8 -n 100 -c UC"
  "send-lat   apart  -s 8 -n 100 -c UD"
  "atomic-bw  both   -n 100"
  "atomic-bw  apart  -n 100 -A CMP_AND_SWAP"
  "atomic-lat both   -n 100"
)

# Several at a time: each waits for seconds, as perftest does on both sides.
lanes=3

perftest() {
  local lane lanes_running=()
  rm -f "$scratch"/results.[0-9]
  for ((lane = 0; lane < lanes; lane++)); do
    lane "$lane" &
    lanes_running+=($!)
  done
  wait "${lanes_running[@]}" || true
  for ((lane = 0; lane < lanes; lane++)); do
    cat "$scratch/results.$lane" >>"$scratch/results"
  done
  all_recorded
}

# That no lane ended before its last pair.
all_recorded() {
  local name where options wanted=0 there
  for pair in "${pairs[@]}"; do
    read -r name where options <<<"$pair"
    if [[ $where == both ]]; then wanted=$((wanted + 4)); else wanted=$((wanted + 2)); fi
  done
  there=$(cat "$scratch"/results.[0-9] | wc -l)
  ((there == wanted)) || record "all pairs" failed "$there of $wanted were tried"
}

lane() { # its number
  local i name where options why port=$((20000 + 1000 * $1)) log=$scratch/results.$1
  for ((i = $1; i < ${#pairs[@]}; i += lanes)); do
    read -r name where options <<<"${pairs[i]}"
    local theirs="ib_${name//-/_} $options" ours="$qpair perf $name $options"
    pair "$name" "$options" "server perftest" 2 "$theirs" 1 "$ours"
    pair "$name" "$options" "server qpair" 2 "$ours" 1 "$theirs"
    [[ $where == both ]] || continue
    pair "$name" "$options" "server perftest, within" 1 "$theirs" 1 "$ours"
    pair "$name" "$options" "server qpair, within" 1 "$ours" 1 "$theirs"
  done
}

# Again, some times, where perftest gives up for a reason of its own: it compares two clocks, and on an emulated host they
# may differ so much that it prints no figure. That says nothing of the other side.
pair() { # perf's test, options, who serves, the server's place, its command, the client's place, its command
  local try gave_up
  for try in {1..8}; do
    why="" gave_up=""
    interop "$1" "$2" "$((port += 1))" "${@:4}"
    [[ -z $why ]] || ! grep -q "Can't produce a report" "$scratch/server.$port" "$scratch/client.$port" || gave_up=yes
    [[ -n $gave_up ]] || break
  done
  if [[ -n $gave_up ]]; then
    record "$1 $2, $3" skipped "perftest found its clocks too far apart for a figure, $try times"
  elif [[ -n $why ]]; then
    printf '%s\n' "--- server: $5" "$(tail -n 30 "$scratch/server.$port")"
    printf '%s\n' "--- client: $7" "$(tail -n 30 "$scratch/client.$port")" ---
    record "$1 $2, $3" failed "$why"
    hosts_live >/dev/null || exit # of this lane: the step is run again
  else
    record "$1 $2, $3" passed
  fi
}

# Good is: both end with status 0, and the client prints a table that agrees with the options and with itself.
interop() { # perf's test, options, port, the server's place, its command, the client's place, its command: sets `why`
  meet "$3" "$4" "$5 -d $(device_at "$4") -p $3" "$6" "$7 -d $(device_at "$6") -p $3 $(address_of "$4")"
  # shellcheck disable=SC2086 # options are words
  [[ -n $why ]] || why=$(results measured "$1" "$scratch/client.$3" $2 2>&1) || true
}

# Runs a server and, once it listens, its client. Places are hosts by their numbers, and `here`: this machine.
meet() { # TCP port, the server's place, its command, the client's place, its command: sets `why` if either fails
  local ready server status=0 limit=${limit:-180}
  ready=$RXE_STATE/shared/ready.$1
  at "$2" "$limit" "(until ${ready_when:-ss -ltnH 'sport = :$1' | grep -q .}; do kill -0 \$\$ || exit; sleep 0.05; done; >$(quoted "$ready")) &
    exec $3" >"$scratch/server.$1" 2>&1 &
  server=$!
  interruptible at "$4" "$limit" "until [[ -e $(quoted "$ready") ]]; do sleep 0.05; done
    exec $5" >"$scratch/client.$1" 2>&1 || why="the client ended with status $?"
  wait "$server" || status=$?
  ((!status)) || why="the server ended with status $status${why:+, $why}"
  rm -f "$ready"
}

# Ends with this script, wherever it runs.
at() { # place, seconds, command
  if [[ $1 == here ]]; then
    hosts local timeout --kill-after=5 "$2" setpriv --pdeathsig KILL bash -c "$3" </dev/null
  else
    hosts run -t "$2" "$1" "$3"
  fi
}

device_at() { if [[ $1 == here ]]; then echo soft0; else echo rxe0; fi; }
address_of() { echo "10.77.0.1${1#here}"; }
