// An end that hands its slot to the next job of its key, in a transaction that stays open, between any two statements of another verb: no key ever has more than
// its limit, whichever is committed first, and none is stuck afterwards. And mutants of the function in the database: each must be found by the same schedules.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import pg from "pg";
import type { ClaimedJob, JobDraft } from "../../src/job/job.ts";
import { jobKey } from "../../src/job/limits.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import type { Store } from "../../src/stores/port.ts";
import {
  draft,
  idsOf,
  kind,
  roomFor,
  SETTLE,
  TestWorker,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { isLocked, SteppedStore } from "./stepped-store.ts";

const SCHEMA = "outlive";
let url: string;
/** Reads how things stand. */
let look: pg.Client;
/** Ends a job and hands on its slot, and commits when the test says so. */
let ender: pg.Client;
let stores: SteppedStore[];
let workers: TestWorker[];
const ends: (() => Promise<unknown>)[] = [];

before(async () => {
  url = await freshDatabase({ after: (then) => void ends.unshift(then) });
  await withClient(url, (client) => migrate(client, SCHEMA));
  [look, ender] = [new pg.Client({ connectionString: url }), new pg.Client({ connectionString: url })];
  for (const client of [look, ender]) {
    await client.connect();
    ends.unshift(() => client.end());
  }
  // What it needs it takes or passes, and waits for nothing.
  await ender.query("SET lock_timeout = '2s'");
  stores = await Promise.all([0, 1].map(() => SteppedStore.open({ url, schema: SCHEMA }, () => isLocked(look))));
  for (const { store } of stores) ends.unshift(() => store.close());
  workers = await Promise.all(
    stores.map(async ({ store }, at) => {
      const { epoch } = await store.register(workerRecord(`w${at}`));
      return new TestWorker(store, `w${at}`, epoch);
    }),
  );
});
after(async () => {
  for (const end of ends) await end();
});

/** One run of a schedule: a kind of its own with a limit of two for each tenant, and one of one for each account. */
class Scene {
  static #count = 0;
  readonly kind = `k${++Scene.#count}`;
  readonly tenant = `tenant-${this.kind}`;
  readonly account = `account-${this.kind}`;
  running = 2;
  /** What the first worker has claimed. */
  claimed: readonly ClaimedJob[] = [];

  declare(store: Store, running: number): Promise<unknown> {
    const limits = [limit(this.tenant, { running }), limit(this.account, { running: 1 })];
    return store.declare([kind(this.kind, { keyed: limits })]);
  }

  job(id: string, tenant = "acme", account?: string): JobDraft {
    const keys = [jobKey(this.tenant, tenant), ...(account ? [jobKey(this.account, account)] : [])];
    return draft({ id: `${id}-${this.kind}`, kind: this.kind, keys });
  }

  jobs(count: number, tenant = "acme"): JobDraft[] {
    return Array.from({ length: count }, (_, n) => this.job(`${tenant}${n}`, tenant));
  }

  async enqueue(...drafts: readonly JobDraft[]): Promise<void> {
    await stores[0]!.store.enqueue(drafts);
  }

  claim(by: TestWorker, room = 10): Promise<readonly ClaimedJob[]> {
    return by.claim(roomFor(room, [this.kind]));
  }

  without(...jobs: readonly ClaimedJob[]): void {
    this.claimed = this.claimed.filter((one) => !jobs.includes(one));
  }

  /** The first worker runs as many as there may be. */
  async fill(running: number): Promise<void> {
    for (let turns = 0; turns < 5; turns++) this.claimed = [...this.claimed, ...(await this.claim(workers[0]!))];
    assert.equal(this.claimed.length, running);
  }

  /** What waits, is ready or runs, by tenant: as one snapshot has it. */
  async assertSound(): Promise<void> {
    const { rows } = await look.query(
      `SELECT k.key, count(*)::int AS taken FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job
         CROSS JOIN LATERAL (VALUES (e.key1, 0), (e.key2, 1)) AS k (key, at)
       WHERE j.kind = (SELECT id FROM outlive.kinds WHERE name = $1) AND e.place = 2 AND k.key IS NOT NULL
       GROUP BY k.key, k.at HAVING count(*) > CASE k.at WHEN 0 THEN $2::int ELSE 1 END`,
      [this.kind, this.running],
    );
    assert.deepEqual(rows, [], "no key has more than its limit");
    const { rows: odd } = await look.query(
      `SELECT j.id FROM outlive.jobs j JOIN outlive.extras e ON e.job = j.seq WHERE j.kind = (SELECT id FROM outlive.kinds WHERE name = $1)
         AND ((j.state = 1 OR j.state = 0 AND j.lane IN (1, 2)) <> (e.place = 2) OR (e.place = 1) <> (e.door IS NOT NULL) OR j.state = 0 AND j.rated AND j.lane = 1)`,
      [this.kind],
    );
    assert.deepEqual(odd, [], "the place of a job is what its row says");
  }

  /** Everything runs once. */
  async assertEnds(): Promise<void> {
    const ended = new Set<string>();
    const left = async (): Promise<number> => {
      const sql =
        "SELECT 1 FROM outlive.jobs WHERE state < 2 AND kind = (SELECT id FROM outlive.kinds WHERE name = $1)";
      return (await look.query(sql, [this.kind])).rows.length;
    };
    let claimed = this.claimed;
    for (let turn = 0; (await left()) > 0; turn++) {
      assert.ok(turn < 30, `${await left()} jobs are stuck`);
      for (const id of idsOf(claimed)) {
        assert.ok(!ended.has(id), `${id} ran twice`);
        ended.add(id);
      }
      await workers[0]!.settle(...claimed.map((job) => SETTLE.succeed(job)));
      await this.assertSound();
      claimed = await this.claim(workers[0]!);
      await this.assertNoneWaits();
    }
  }

  /** No key has room, jobs that wait for it, and no wake. */
  async assertNoneWaits(): Promise<void> {
    const { rows } = await look.query(
      `SELECT e.door FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job
       WHERE j.kind = (SELECT id FROM outlive.kinds WHERE name = $1) AND e.door = e.key1 AND e.key2 IS NULL
         AND (SELECT count(*) FROM outlive.extras o WHERE o.key1 = e.door AND o.place = 2) < $2::int
         AND NOT EXISTS (SELECT 1 FROM outlive.key_wakes w WHERE w.key = e.door)`,
      [this.kind, this.running],
    );
    assert.deepEqual(rows, [], "no key waits while there is room");
  }
}

const END = `WITH clock AS MATERIALIZED (SELECT set_config('outlive_tx.notes', 'ends', true)),
  settled AS (UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = outlive.now_ms() FROM clock WHERE j.seq = ANY ($1::bigint[]) AND j.state = 1 RETURNING j.seq)
  SELECT outlive.note_ends(array_agg(seq), true) / 256 AS handed FROM settled`;

interface Scenario {
  readonly name: string;
  readonly prepare: (scene: Scene) => Promise<unknown>;
  /** How many jobs end together. Default 1. */
  readonly ends?: number;
  readonly verb: (scene: Scene, store: Store) => Promise<unknown>;
  /** What must hold when both have ended, in addition to what always must. */
  readonly then?: (scene: Scene, how: "COMMIT" | "ROLLBACK") => Promise<unknown>;
}

const full = async (scene: Scene): Promise<void> => {
  await scene.enqueue(...scene.jobs(6));
  await scene.fill(2);
};
/** The second worker, by the store whose statements stop. */
const turnOfOther = (scene: Scene, store: Store): Promise<unknown> =>
  new TestWorker(store, "w1", workers[1]!.epoch).turn([], roomFor(0, [scene.kind]));
const pause = (scene: Scene, store: Store, forMs: number | null = null): Promise<unknown> =>
  store.operate.pauseKey!(jobKey(scene.tenant, "acme"), { reason: "a test", forMs });
const nothingStarts = async (scene: Scene): Promise<void> => {
  for (let turn = 0; turn < 3; turn++) assert.deepEqual(await scene.claim(workers[1]!), [], "it is paused");
  await stores[0]!.store.operate.pauseKey!(jobKey(scene.tenant, "acme"), null);
};

const SCENARIOS: readonly Scenario[] = [
  { name: "a pause", prepare: full, verb: pause, then: nothingStarts },
  {
    name: "an admission",
    prepare: async (scene) => {
      await full(scene);
      await scene.enqueue(scene.job("more"));
    },
    verb: turnOfOther,
  },
  {
    name: "an admission that fills a limit that was raised",
    prepare: async (scene) => {
      await full(scene);
      await scene.declare(stores[0]!.store, (scene.running = 3));
    },
    verb: turnOfOther,
  },
  {
    name: "a limit that is lowered",
    prepare: full,
    verb: (scene, store) => scene.declare(store, 1),
    then: async (scene) => {
      // Whatever was handed on before, no end is followed by another start while there is more than one.
      scene.claimed = [...scene.claimed, ...(await scene.claim(workers[0]!))];
      while (scene.claimed.length > 1) {
        await workers[0]!.settle(SETTLE.succeed(scene.claimed[0]!));
        scene.without(scene.claimed[0]!);
        assert.deepEqual(await scene.claim(workers[1]!), []);
      }
      scene.running = 1;
    },
  },
  {
    name: "the end of the other job",
    prepare: full,
    verb: async (scene, store) => {
      const other = scene.claimed[1]!;
      await new TestWorker(store, "w0", workers[0]!.epoch).settle(SETTLE.succeed(other));
      scene.without(other);
    },
  },
  {
    name: "the return of the other job",
    prepare: full,
    verb: async (scene, store) => {
      const other = scene.claimed[1]!;
      await new TestWorker(store, "w0", workers[0]!.epoch).settle(SETTLE.release(other));
      scene.without(other);
    },
  },
  {
    name: "the first job at an empty door",
    prepare: async (scene) => {
      await scene.enqueue(...scene.jobs(2));
      await scene.fill(2);
    },
    verb: async (scene, store) => {
      await store.enqueue([scene.job("late")]);
      for (let turns = 0; turns < 2; turns++) await turnOfOther(scene, store);
    },
  },
  {
    name: "the second job at a door, while two end",
    prepare: async (scene) => {
      await scene.enqueue(...scene.jobs(3));
      await scene.fill(2);
    },
    ends: 2,
    verb: async (scene, store) => {
      await store.enqueue([scene.job("late")]);
      for (let turns = 0; turns < 2; turns++) await turnOfOther(scene, store);
    },
  },
  {
    name: "an event that gives the next job another key, which is full",
    prepare: async (scene) => {
      await scene.enqueue(...scene.jobs(2), ...scene.jobs(3, "bolt"));
      await scene.enqueue({ ...scene.job("moves"), dedupeKey: "one", dedupe: { then: "replace" } });
      await scene.fill(4);
    },
    verb: (scene, store) =>
      store.enqueue([
        { ...scene.job("moves", "bolt"), id: `x-${scene.kind}`, dedupeKey: "one", dedupe: { then: "replace" } },
      ]),
  },
  {
    name: "a cancel of the next job",
    prepare: full,
    verb: (scene, store) => store.operate.cancel(`acme2-${scene.kind}`, "operator"),
  },
  {
    name: "an admission next to jobs with a second key, which is full",
    prepare: async (scene) => {
      await scene.enqueue(
        scene.job("first", "bolt", "one"),
        ...scene.jobs(2),
        scene.job("second", "acme", "one"),
        scene.job("third"),
      );
      await scene.fill(3);
      scene.claimed = scene.claimed.toSorted((a, b) =>
        a.lease.jobId.startsWith("first") ? 1 : b.lease.jobId.startsWith("first") ? -1 : 0,
      );
    },
    verb: turnOfOther,
  },
  {
    name: "a turn after the key was paused",
    prepare: async (scene) => {
      await full(scene);
      await pause(scene, stores[0]!.store);
    },
    verb: turnOfOther,
    then: nothingStarts,
  },
];

/** The verb goes to its statement `at`; a job ends; the verb goes on for `more` statements; and the end is committed or rolled back. Returns whether there are further ones. */
async function runAt(
  scenario: Scenario,
  at: number,
  more: number,
  how: "COMMIT" | "ROLLBACK",
): Promise<[boolean, boolean]> {
  const scene = new Scene();
  await scene.declare(stores[0]!.store, 2);
  await scenario.prepare(scene);
  const stepped = stores[1]!;
  await stepped.begin((store) => scenario.verb(scene, store));
  const isFurther = await goes(stepped, at);
  try {
    await ender.query("BEGIN");
    const ending = scene.claimed.slice(0, scenario.ends ?? 1);
    await ender.query(END, [ending.map(({ lease }) => lease.row)]);
    const isMore = isFurther && (await goes(stepped, more));
    await scene.assertSound();
    await ender.query(how);
    if (how === "COMMIT") scene.without(...ending);
    await scene.assertSound();
    await stepped.finish();
    await scene.assertSound();
    await scenario.then?.(scene, how);
    await scene.assertNoneWaits();
    await scene.assertEnds();
    return [isFurther, isMore];
  } finally {
    await ender.query("ROLLBACK");
    await stepped.finish();
  }
}

/** Whether it stands before a further statement: it may have come to its end, or to a lock of the other. */
async function goes(store: SteppedStore, statements: number): Promise<boolean> {
  for (let at = 0; at < statements; at++) if ((await store.step()) !== "to a statement") return false;
  return true;
}

async function explore(scenario: Scenario): Promise<number> {
  let schedules = 0;
  for (const how of ["COMMIT", "ROLLBACK"] as const)
    for (let at = 0, isFurther = true; isFurther; at++)
      for (let more = 0, isMore = true; isMore && (more === 0 || how === "COMMIT"); more++) {
        schedules++;
        [isFurther, isMore] = await runAt(scenario, at, more, how).catch((thrown: unknown) => {
          throw new Error(`${scenario.name}: an end before statement ${at}, ${how} ${more} later`, { cause: thrown });
        });
      }
  return schedules;
}

for (const scenario of SCENARIOS)
  test(`a slot is handed on in the middle of ${scenario.name}`, async (t) => {
    const schedules = await explore(scenario);
    t.diagnostic(`${schedules} schedules`);
    assert.ok(schedules >= 4, "the verb has several statements");
  });

interface Mutant {
  readonly name: string;
  /** Default: hand_over_slots. */
  readonly in?: string;
  readonly from: string;
  readonly to: string;
  /** The scenario that finds it. */
  readonly foundBy: string;
}

const MUTANTS: readonly Mutant[] = [
  {
    name: "slots are handed on without the lock that a pause takes",
    from: "IF NOT pg_try_advisory_xact_lock_shared",
    to: "IF false AND NOT pg_try_advisory_xact_lock_shared",
    foundBy: "a pause",
  },
  {
    name: "slots above a limit that was lowered are handed on",
    from: "least(k.n, l.running - ",
    to: "least(k.n, 9 + l.running - ",
    foundBy: "a limit that is lowered",
  },
  {
    name: "a key whose slot was not handed on has no wake",
    in: "note_ends(bigint[], boolean)",
    from: "keys := keys || ones;",
    to: "",
    foundBy: "the first job at an empty door",
  },
  {
    name: "a key of which some slots were handed on has no wake for the others",
    from: "HAVING sum(k.n) > 0",
    to: "HAVING false",
    foundBy: "the second job at a door, while two end",
  },
  {
    name: "a slot goes to a job whose other key is full",
    from: "w.key2 IS NULL AND ",
    to: "",
    foundBy: "an admission next to jobs with a second key, which is full",
  },
  {
    name: "a key that is paused hands on its slots",
    from: "NOT EXISTS (SELECT 1 FROM",
    to: "true OR NOT EXISTS (SELECT 1 FROM",
    foundBy: "a turn after the key was paused",
  },
  {
    name: "a slot is handed on twice",
    from: "least(k.n, l.running",
    to: "least(2 * k.n, 1 + l.running",
    foundBy: "an admission",
  },
  {
    name: "a job that another transaction has locked gets a slot",
    from: "FOR NO KEY UPDATE OF j SKIP LOCKED",
    to: "",
    foundBy: "an event that gives the next job another key, which is full",
  },
];

for (const mutant of MUTANTS)
  test(`a mutant is found: ${mutant.name}`, async () => {
    const {
      rows: [found],
    } = await look.query<{ text: string }>("SELECT pg_get_functiondef($1::regprocedure) AS text", [
      `outlive.${mutant.in ?? "hand_over_slots(bigint[], integer[], text[])"}`,
    ]);
    assert.ok(found!.text.includes(mutant.from), "it has what is to be changed");
    await look.query(found!.text.replace(mutant.from, mutant.to));
    try {
      await assert.rejects(explore(SCENARIOS.find(({ name }) => name === mutant.foundBy)!));
    } finally {
      await look.query(found!.text);
    }
  });
