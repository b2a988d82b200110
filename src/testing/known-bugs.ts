// Known bugs: what went wrong in production with other engines, each with a number that never changes, and the tests that show that it can't
// happen here. A test of the conformance suite carries the number of its bug in its title: "known bug 4: ...".

/** Which test shows it: one of the conformance suite by the number, another by the beginning of its title. */
export type Showing =
  | { readonly suite: "conformance" }
  | { readonly suite: "crash" | "simulator" | "postgres"; readonly test: string };

/** A bug that other engines had, and the tests that show that Outlive does not have it. */
export interface KnownBug {
  /** Its number in this list; it never changes. */
  readonly number: number;
  /** What happened, and to whom. */
  readonly happened: string;
  /** The tests that show it. */
  readonly shown: readonly Showing[];
  /** The feature that must exist before it can be shown; null: it is shown. */
  readonly waitsFor: string | null;
}

const conformance: Showing = { suite: "conformance" };

/** Real bugs of this field, each with the tests that show that Outlive does not have it. */
export const KNOWN_BUGS: readonly KnownBug[] = [
  knownBug(
    1,
    "Killed between claim and first heartbeat: never noticed (Airflow, asynq).",
    conformance,
    crash("a transfer whose worker is killed"),
  ),
  knownBug(
    2,
    "Heartbeat stopped before the drain: a healthy, draining worker is pruned (Solid Queue, db-scheduler).",
    conformance,
  ),
  knownBug(
    3,
    "A zombie completes the newer run (Oban, River), or frees a slot twice (Solid Queue).",
    conformance,
    crash("a worker frozen past its lease loses its work"),
  ),
  knownBug(4, "The reaper overwrites a job that finished between its SELECT and its UPDATE (River).", conformance),
  knownBug(
    5,
    "Rescue threshold shorter than the job: duplicates every night (hex.pm); longer: hours of waiting.",
    conformance,
    crash("at default settings a killed worker's job runs again"),
  ),
  knownBug(6, "A page full of jobs that can't be rescued hides the others (River).", conformance),
  knownBug(
    7,
    "The reaper hangs forever on one database call without a timeout (River).",
    crash("a process frozen inside a write transaction stops all others but loses nothing"),
  ),
  knownBug(8, "A kind that this process doesn't know is discarded (River) or failed (Alya).", conformance),
  knownBug(
    9,
    "The fast path skips the counters: a job that kills its worker looped for 17 hours (activepieces on BullMQ).",
    conformance,
    crash("a job that kills its worker ends in quarantine"),
  ),
  knownBug(10, "A crash on the last attempt: dead without a word (Oban).", conformance),
  knownBug(11, "Batch counters drift below zero after a redelivery (Sidekiq).", conformance),
  knownBug(
    12,
    "Start-up code wipes the evidence before recovery looks (Quartz.NET).",
    conformance,
    crash("a restart right after the crash recovers at once"),
  ),
  knownBug(13, "The same hostname, pid or node name hides orphans (Oban).", conformance),
  knownBug(
    14,
    "Any error of a heartbeat other than 'row gone' is ignored: an immortal zombie (Solid Queue).",
    conformance,
  ),
  knownBug(15, "An over-eager scan takes a job three seconds after its start (Sidekiq).", conformance),
  knownBug(16, "The claim takes more than its limit (Oban 2.15).", conformance),
  knownBug(17, "Clock skew decides who is dead (db-scheduler, JobRunr).", conformance),
  knownBug(
    18,
    "A long pause of the event loop counts as a death (JobRunr, BullMQ).",
    conformance,
    crash("a handler that blocks the loop for many leases is not taken for dead"),
  ),
  knownBug(19, "The database restarts, all connection-bound locks vanish, everything runs twice (GoodJob).", {
    suite: "postgres",
    test: "known bug 19: the database",
  }),
  knownBug(
    20,
    "Slots, unique keys and locks leaked by a dead holder block work forever (Solid Queue, Oban).",
    conformance,
  ),
  knownBug(
    21,
    "Finished but not yet flushed completions are replayed (River's buffer).",
    conformance,
    crash("a job whose worker is killed after the settlement's commit has ended"),
  ),
  knownBug(22, "A poison job can't be cancelled while it loops (GoodJob).", conformance),
  waiting(23, "Broker timeouts shorter than the job: endless duplicates (Celery, RabbitMQ).", "the RabbitMQ broker"),
  knownBug(24, "An event for a job that is running is dropped (EcoSign).", conformance),
  knownBug(
    25,
    "A cron tick killed half-way leaves the schedule stuck or fires it twice (plainjob, BullMQ).",
    conformance,
    crash("known bug 25: a worker that is killed"),
  ),
  knownBug(
    26,
    "Migration killed half-way; old and new version on one store.",
    crash("a migration of an older store that is killed before or after its commit is done whole"),
  ),
  knownBug(27, "A slot released by the reaper and again by the zombie: limit 1 ran 11 (Solid Queue).", conformance),
  knownBug(28, "A reclaim that forgets the slot: a tenant at capacity for good (Trigger.dev).", conformance),
  knownBug(
    29,
    "A queue item deleted before its assignment is confirmed: slots 30 h old, 53,000 waiting (Hatchet).",
    conformance,
  ),
  knownBug(30, "Parked items requeued only by the process that parked them (Hatchet).", conformance),
  knownBug(31, "Capacity by position instead of by count: 4 ran at limit 2 (Hatchet).", conformance),
  knownBug(
    32,
    "An enqueue reads that the key is full while the last holder finishes and finds no job waiting: stuck (Solid Queue).",
    conformance,
  ),
  knownBug(33, "A saturated key at the head hides all others (pg-boss).", conformance),
  knownBug(34, "Rows taken beyond the limit and released burn a retry (pg-boss).", conformance),
  knownBug(35, "Maintenance that frees slots races the workers at their start (Solid Queue).", conformance),
  knownBug(36, "One bad item in a dequeued batch strands the rest (DBOS 546).", conformance),
  knownBug(37, "A draining executor claims again what recovery has just requeued (DBOS 804).", conformance),
  knownBug(38, "An older event overwrites the newer one in a debounce (Inngest 4800).", conformance),
  knownBug(39, "A signal sent while the wait is being written is lost (Hatchet 4314).", conformance),
  knownBug(40, "A cron chain is broken by concurrent upserts at boot (BullMQ 3272, 3381).", conformance),
  knownBug(41, "A cron run is lost between two pollers' windows (pg-boss 914).", conformance),
  knownBug(
    42,
    "A parent is not woken when its child died by stall (BullMQ 2464).",
    conformance,
    crash("a process that is killed"),
  ),
];

function knownBug(number: number, happened: string, ...shown: readonly Showing[]): KnownBug {
  return { number, happened, shown, waitsFor: null };
}

function waiting(number: number, happened: string, waitsFor: string): KnownBug {
  return { number, happened, shown: [], waitsFor };
}

function crash(title: string): Showing {
  return { suite: "crash", test: title };
}
