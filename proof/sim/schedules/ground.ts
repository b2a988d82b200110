// Where a history of schedules takes place: a real store, and what its world has to do to it and to read of it without the port.
import { isTerminal } from "../../../src/job/job.ts";
import type { ScheduleRow } from "../../../src/job/schedules.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { PlannedJob } from "../../../src/stores/schedules.ts";
import { Database } from "../../../src/stores/sqlite/database.ts";
import { migrate } from "../../../src/stores/sqlite/schema.ts";
import { sqliteStore } from "../../../src/stores/sqlite/store.ts";
import type { VirtualClock } from "../../../src/testing/virtual-clock.ts";
import { AtomicServer } from "../stores/atomic-server.ts";
import { atomicStore } from "../stores/atomic-store.ts";
import { Data } from "../stores/records.ts";
import type { SeededRandom } from "../world/random.ts";

/** A job that came into the store. */
export interface Fired {
  readonly job: string;
  /** Null: no schedule enqueued it. */
  readonly schedule: string | null;
  readonly at: number;
  readonly seen: number;
  /** Jobs of the same schedule that had not ended. */
  readonly unfinished: number;
}

export interface Ground {
  readonly store: Store;
  /** What came since it was last asked. */
  fired(): readonly Fired[];
  rows(): readonly ScheduleRow[];
  start(worker: string): Promise<void>;
  end(worker: string): void;
  /** Every job succeeds. */
  endAll(): void;
  /** The latest scripts are lost, some of them. Returns the occurrences that went with them. Absent: nothing is ever lost. */
  lose?(random: SeededRandom): readonly PlannedJob[];
}

export function onSqlite(clock: VirtualClock, random: SeededRandom): Ground {
  const db = new Database({ path: ":memory:" });
  migrate(db);
  let ids = 0;
  const store = sqliteStore({ db, clock, random, newId: () => `id-${ids++}`, wakeup: null });
  db.exec("CREATE TABLE sim_fired (job TEXT, schedule TEXT, at INTEGER, seen INTEGER, unfinished INTEGER)");
  db.exec(`CREATE TRIGGER sim_jobs AFTER INSERT ON outlive_jobs BEGIN
    INSERT INTO sim_fired (job, schedule, at, seen) VALUES (NEW.id, NULL, NULL, NEW.created_at); END`);
  db.exec(`CREATE TRIGGER sim_occurrences AFTER INSERT ON outlive_occurrences BEGIN
    UPDATE sim_fired SET schedule = NEW.schedule, at = NEW.at, unfinished =
      (SELECT count(*) FROM outlive_occurrences o JOIN outlive_jobs j ON j.id = o.job WHERE o.schedule = NEW.schedule AND j.state < 2 AND o.job <> NEW.job)
    WHERE job = NEW.job AND schedule IS NULL; END`);
  return {
    store,
    fired() {
      const rows = db.sql("SELECT * FROM sim_fired").all() as unknown as Fired[];
      db.exec("DELETE FROM sim_fired");
      return rows;
    },
    rows() {
      const rows = db.sql("SELECT body FROM outlive_schedules ORDER BY name").all() as { body: string }[];
      return rows.map(({ body }) => JSON.parse(body) as ScheduleRow);
    },
    async start(worker) {
      db.sql(
        `INSERT INTO outlive_workers (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at, counts_rows)
       VALUES (?, 'live', 'sim', 'boot', 1, '0', 1, 1, 1, '[]', 0, 0, 1)`,
      ).run(worker);
    },
    end: (worker) => void db.sql("UPDATE outlive_workers SET state = 'gone' WHERE id = ?").run(worker),
    endAll: () =>
      void db.sql("UPDATE outlive_jobs SET state = 2, lane = 0, finished_at = ? WHERE state = 0").run(clock.now()),
  };
}

/** At most this many scripts are lost at once. */
const MOST_LOST = 12;

/** On the store in the shape of Redis. */
export function onAtomic(clock: VirtualClock): Ground {
  const server = new AtomicServer({ now: () => clock.now() });
  const known = new Set<string>();
  /** Scripts before the first loss: the schedules themselves are not lost. */
  let kept = 0;
  const read = <T>(body: (data: Data) => T): T => {
    let answer: T;
    server.eval("look", (keys) => {
      answer = body(new Data(keys));
      return "";
    });
    return answer!;
  };
  const planned = (data: Data): readonly PlannedJob[] =>
    data.keys.fields("planned").map((id) => JSON.parse(data.keys.get("planned", id)!) as PlannedJob);
  return {
    store: atomicStore(server),
    fired: () =>
      read((data) => {
        const all = planned(data);
        const byJob = new Map(all.map((one) => [one.job, one]));
        const unfinished = data.jobs().filter(({ state }) => !isTerminal(state));
        const found: Fired[] = [];
        for (const { id, createdAt } of data.jobs()) {
          if (known.has(id)) continue;
          known.add(id);
          const { schedule = null, at = 0 } = byJob.get(id) ?? {};
          const others = unfinished.filter((job) => job.id !== id && byJob.get(job.id)?.schedule === schedule);
          found.push({ job: id, schedule, at, seen: createdAt, unfinished: others.length });
        }
        return found;
      }),
    rows: () =>
      read((data) =>
        data.keys.fields("schedules").map((name) => JSON.parse(data.keys.get("schedules", name)!) as ScheduleRow),
      ),
    async start(id) {
      const process = { host: "sim", bootId: "boot", namespace: null, pid: 1, startTicks: null, predecessor: null };
      const lock = { name: null, identity: null };
      await this.store.register({ ...process, id, version: "0", leaseMs: 1_000, concurrency: 1, kinds: [], lock });
      kept ||= server.scripts;
    },
    end: (id) =>
      read((data) => {
        const worker = data.worker(id);
        if (worker !== null) data.putWorker({ ...worker, state: "gone" });
      }),
    endAll: () =>
      read((data) => {
        for (const job of data.queued()) data.putJob({ ...job, state: "succeeded", finishedAt: data.now });
      }),
    lose(random) {
      const before = read(planned);
      const count = random.below(Math.max(0, Math.min(MOST_LOST, server.scripts - kept)) + 1);
      server.loseSuffix(count);
      const after = new Set(read(planned).map(({ job }) => job));
      const lost = before.filter(({ job }) => !after.has(job));
      for (const { job } of lost) known.delete(job);
      return lost;
    },
  };
}
