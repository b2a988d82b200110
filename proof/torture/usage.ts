/** What `npm run torture -- --help` says. */
export const USAGE = `npm run torture -- [--batches | --collections | --features | --power-loss | --kill-at-call | --restore | --migrate | --previous | --requests] [options]

Each rig ends with exit code 1 on any violation; --json makes its last line one of JSON. docs/testing.md says what they do and show.

Processes (without one of these options): real processes, killed, frozen and cut off
  --store NAME              sqlite, postgres or redis; default sqlite
  --kills N                 how many processes are killed, default 200, or 0 with --faults
  --faults A,B              only these faults of the surroundings; without kills each strikes in turn:
                            sqlite: fillDisk, writeLock, clock; postgres: killServer, stopServer, freezeServer, fillDisk, delay,
                            cutAll, cutSome, cutInAnswer, swallow, reset, clock, frozenCommit, and with --pgbouncer killPooler,
                            with --liveness killPulse, stopPulse, freezePulse; redis: killServer, stopServer, freezeServer, fillMemory,
                            failOver, delay, cutAll, cutSome, cutInAnswer, swallow, reset, clock
  --rounds N                how often each fault strikes if no process is killed, default 1
  --pgbouncer               all processes go through PgBouncer in transaction mode (postgres)
  --liveness                workers show that they live on a Redis server, which is killed, stopped and frozen, too (postgres)
  --seed N                  of the jobs and of the violence, default 1; the pace is the machine's
  --workers N               worker processes, default 6
  --keep                    keep the histories and the store also if every promise held

--batches: batches of 0, 1, 8 and 1,000 rows, some aborted, some retried, while workers, submitters, all of them and the server are killed
  --store sqlite|postgres|redis, --kills N, --seed N, --workers N, --keep
  --total N                 go on until N batches were submitted, of at most 8 rows each
  --seconds N               end kills and submissions after this long, and judge what was submitted: a piece of a campaign

--collections: collections of 20 parts from RabbitMQ, while workers, the producer, all workers, the broker, a worker with
  the broker, and the server of a PostgreSQL or Redis store are killed
  --store sqlite|postgres|redis, --kills N, --seed N, --keep
  --seconds N               end kills and sending after this long, and judge what was sent: a piece of a campaign
  --points                  instead of random kills: worker, broker, store, and worker and broker, each at ten points of a
                            collection's life
  --victim NAME             only this one of the four

--features: jobs that wait and jobs with keys, while workers are killed every 200 ms
  --store sqlite|postgres|redis, --seed N, --workers N, --keys N, --keep
  --kills N                 default 200; without --scenario, mixed has all of them and each other scenario half as many
  --scenario A,B            mixed, one-per-key, pace, fairness, schedules, open-transaction and sql-reclaim (postgres); default all of the
                            store. Below 100 kills, fairness, schedules and open-transaction are smaller in proportion
  --ended-within MS         how long all jobs may take to end after the last kill, default 120000
  --plant A,B               the controls: limit, rate, room, fair, order, signals, wakes, events, schedules

--requests: HTTP requests of all policies and in order, to a receiver that records them, while full processes are killed, at most one every 350 ms
  --store sqlite|postgres|redis, --kills N, --seed N, --workers N, --keep
  --seconds N               end kills after this long, and judge what was sent: a piece of a campaign
  --in-flight N             of the kind that is sent again, in each process, default 200; of each of the three others half as many
  --plant resend            the control: what must not be sent twice is sent again

--power-loss: what a power loss leaves of the file
  --states N, --seed N, --scenario A,B, --again N
  --recording FOLDER, --state N         one state of a recording that was kept, again
  --durability relaxed, --plant ignored-syncs   the controls

--kill-at-call: SIGKILL as a process enters its N-th write or sync
  --kills N, --scenario A,B, --lanes N
  --at CALL:N               at this call of one scenario alone, again: --scenario commit --at fsync:17
  --plant forged-answer     the control

--restore: an older copy of the store is put in place under living workers
  --store sqlite|postgres, --rounds N, --seed N, --workers N, --keep

--migrate: a large PostgreSQL store of 0.1.0 is migrated while other sessions work with it; none may wait longer than a second
  --rows N                  jobs in it, default 100000; with a fifth as many recovered ones

--previous: workers of 0.1.0 on a store of theirs, which this version migrates under them
  --store sqlite,postgres   default both
  --jobs N                  of each of two kinds, and as many again after the migration; default 400
  --at COMMIT               of another package, default 01d593d
  --keep
`;
