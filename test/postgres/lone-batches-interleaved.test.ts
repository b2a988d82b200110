// What makes a batch the only one of its kind, and what ends that, by two sessions at the same time: each verb stops before each of its statements, and the other
// goes on from there. And mutants of the functions in the database: each must be found by the same schedules, or they would show nothing.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import pg from "pg";
import type { ClaimedJob } from "../../src/job/job.ts";
import { FAIR, jobKey } from "../../src/job/limits.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import type { Store } from "../../src/stores/port.ts";
import { batchDraft, fairBlocks } from "../../src/testing/conformance/batch-fixture.ts";
import {
  draft,
  idsOf,
  kind,
  roomFor,
  SETTLE,
  TestWorker,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { isLocked, SteppedStore } from "./stepped-store.ts";

const SCHEMA = "outlive";
let url: string;
/** Reads how things stand. */
let look: pg.Client;
/** Holds what a test wants to be held. */
let holder: pg.Client;
let stores: SteppedStore[];
let workers: TestWorker[];
const ends: (() => Promise<unknown>)[] = [];

before(async () => {
  url = await freshDatabase({ after: (then) => void ends.unshift(then) });
  await withClient(url, (client) => migrate(client, SCHEMA));
  [look, holder] = [new pg.Client({ connectionString: url }), new pg.Client({ connectionString: url })];
  for (const client of [look, holder]) {
    await client.connect();
    ends.unshift(() => client.end());
  }
  stores = await Promise.all([0, 1, 2].map(() => SteppedStore.open({ url, schema: SCHEMA }, () => isLocked(look))));
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

/** One run of a schedule: a kind of its own, with batches `a` and `b`. */
class Scene {
  static #count = 0;
  readonly kind = `k${++Scene.#count}`;
  /** What the first worker has claimed. */
  running: readonly ClaimedJob[] = [];
  /** And a job of another kind. */
  plain: ClaimedJob | null = null;

  id(batch: string): string {
    return `${batch}-${this.kind}`;
  }

  async open(batch: string, store = stores[0]!.store): Promise<void> {
    await store.batches!.open(batchDraft(this.id(batch), { kind: this.kind }));
  }

  append(store: Store, batch: string, from = 0, round = 1): Promise<unknown> {
    return store.batches!.append(
      this.id(batch),
      round,
      fairBlocks(this.id(batch), [1, 1], { kind: this.kind, from, round }),
    );
  }

  pause(store: Store, batch: string, resumes = false): Promise<unknown> {
    return store.operate.pauseKey!(jobKey(FAIR, this.id(batch)), resumes ? null : { reason: "a test", forMs: null });
  }

  claim(by: TestWorker, room = 10): Promise<readonly ClaimedJob[]> {
    return by.claim(roomFor(room, [this.kind]));
  }

  /** Of batch `a`, all blocks end, and the batch. */
  async endBatch(): Promise<void> {
    const worker = workers[0]!;
    await worker.settle(...(await this.claim(worker)).map((job) => SETTLE.succeed(job)));
    const batch = this.id("a");
    assert.equal(await stores[0]!.store.batches!.seal(batch, 1), "sealed");
    const end = { batch, round: 1, from: "sealed", to: "completed", follow: [] } as const;
    assert.equal(await stores[0]!.store.batches!.finish(end), true);
  }

  count(where: string): Promise<number> {
    return count(
      `SELECT count(*)::int AS n FROM outlive.jobs j JOIN outlive.blocks b ON b.job = j.seq JOIN outlive.batch_state s ON s.seq = b.batch
       WHERE j.kind = (SELECT id FROM outlive.kinds WHERE name = $1) AND j.state < 2
         AND NOT EXISTS (SELECT 1 FROM outlive.extras e WHERE e.job = j.seq AND e.key1 IS NOT NULL) AND ${where}`,
      [this.kind],
    );
  }
}

async function count(sql: string, values: unknown[]): Promise<number> {
  const { rows } = await look.query<{ n: number }>(sql, values);
  return rows[0]!.n;
}

interface Scenario {
  readonly name: string;
  readonly prepare: (scene: Scene) => Promise<unknown>;
  /** Two verbs. Each runs in a store of its own. */
  readonly verbs: readonly [
    (scene: Scene, store: Store) => Promise<unknown>,
    (scene: Scene, store: Store) => Promise<unknown>,
  ];
  /** What must hold when both have ended, in addition to what always must. */
  readonly then?: (scene: Scene) => Promise<unknown>;
}

const twoBlocksOfA = async (scene: Scene): Promise<void> => {
  await scene.open("a");
  await scene.open("b");
  await scene.append(stores[0]!.store, "a");
};
/** Two of them run. */
const fourBlocksOfA = async (scene: Scene): Promise<void> => {
  await twoBlocksOfA(scene);
  await scene.append(stores[0]!.store, "a", 2);
  scene.running = await scene.claim(workers[0]!, 2);
  assert.equal(scene.running.length, 2);
};
const pausesA = (scene: Scene, store: Store): Promise<unknown> => scene.pause(store, "a");
const addsB = (scene: Scene, store: Store): Promise<unknown> => scene.append(store, "b");
const addsToA = (scene: Scene, store: Store): Promise<unknown> => scene.append(store, "a", 2);
/** By a worker of the store whose statements stop: a verb belongs to its worker, not to the session. */
const returnsBlocks = (scene: Scene, store: Store): Promise<unknown> =>
  new TestWorker(store, workers[0]!.id, workers[0]!.epoch).settle(...scene.running.map((job) => SETTLE.release(job)));
const nothingOfAStarts = async (scene: Scene): Promise<void> => {
  for (let turn = 0; turn < 2; turn++) {
    const claimed = await scene.claim(workers[1]!);
    assert.deepEqual(
      idsOf(claimed).filter((id) => id.startsWith("a-")),
      [],
      "it is paused",
    );
    await workers[1]!.settle(...claimed.map((job) => SETTLE.succeed(job)));
  }
  await scene.pause(stores[0]!.store, "a", true);
};
/** The first worker has a job of another kind: a turn that returns it and claims is a transaction of several statements. */
const withPlainJob = async (scene: Scene): Promise<void> => {
  await twoBlocksOfA(scene);
  const plain = draft({ id: `p-${scene.kind}`, kind: `${scene.kind}:done` });
  await stores[0]!.store.enqueue([plain]);
  scene.plain = (await workers[0]!.claim(roomFor(1, [plain.kind])))[0]!;
};
const claimsOne = async (scene: Scene, store: Store): Promise<void> => {
  const turn = await store.turn("w0", [SETTLE.release(scene.plain!)], roomFor(1, [scene.kind]));
  scene.running = turn.claimed;
};
const SUSPECT = `UPDATE outlive.jobs SET state = 0, lane = 2, crashes = 1, worker = 0 WHERE seq = ANY ($1::bigint[])`;

const SCENARIOS: readonly Scenario[] = [
  {
    name: "the first blocks of two batches",
    prepare: async (scene) => {
      await scene.open("a");
      await scene.open("b");
    },
    verbs: [(scene, store) => scene.append(store, "a"), addsB],
  },
  {
    name: "more blocks, and the first ones of another batch",
    prepare: twoBlocksOfA,
    verbs: [addsToA, addsB],
    // Whatever kept the blocks from being moved, nothing is added to them while another batch waits.
    then: async (scene) => {
      await scene.append(stores[0]!.store, "a", 4);
      assert.equal(await scene.count("b.number >= 4"), 0, "they wait at the gate");
    },
  },
  { name: "more blocks, and a pause", prepare: twoBlocksOfA, verbs: [addsToA, pausesA], then: nothingOfAStarts },
  {
    name: "the first blocks, and a pause",
    prepare: (scene) => scene.open("a"),
    verbs: [(scene, store) => scene.append(store, "a"), pausesA],
    then: nothingOfAStarts,
  },
  {
    name: "blocks that return, and a pause",
    prepare: fourBlocksOfA,
    verbs: [returnsBlocks, pausesA],
    then: nothingOfAStarts,
  },
  { name: "blocks that return, and another batch", prepare: fourBlocksOfA, verbs: [returnsBlocks, addsB] },
  {
    name: "a claim that is not committed, and a pause",
    prepare: withPlainJob,
    verbs: [pausesA, claimsOne],
    then: nothingOfAStarts,
  },
  { name: "a claim that is not committed, and another batch", prepare: withPlainJob, verbs: [addsB, claimsOne] },
  {
    name: "suspects, a pause, and another batch",
    prepare: async (scene) => {
      await fourBlocksOfA(scene);
      await look.query(SUSPECT, [scene.running.map(({ lease }) => lease.row)]);
      scene.running = [];
    },
    verbs: [pausesA, addsB],
    then: nothingOfAStarts,
  },
  {
    name: "a new round of the batch that was alone, and another batch",
    prepare: async (scene) => {
      await twoBlocksOfA(scene);
      await scene.endBatch();
      const next = draft({ id: `x-${scene.kind}`, kind: `${scene.kind}:done` });
      assert.equal(await stores[0]!.store.batches!.reopen(scene.id("a"), 1, next), true);
    },
    verbs: [(scene, store) => scene.append(store, "a", 0, 2), addsB],
  },
  {
    name: "another batch, while a transaction of someone else holds a block",
    prepare: async (scene) => {
      await twoBlocksOfA(scene);
      await holder.query("BEGIN");
      await holder.query("SELECT 1 FROM outlive.jobs WHERE id = $1 FOR UPDATE", [`${scene.id("a")}:1:0`]);
    },
    verbs: [addsB, addsToA],
    then: () => holder.query("COMMIT"),
  },
];

/** Runs one verb up to its statement `at`, then the other one as far as it comes, and then both to their ends. Returns whether there is a further statement. */
async function runAt(scenario: Scenario, isSwapped: boolean, at: number): Promise<boolean> {
  const scene = new Scene();
  await stores[0]!.store.declare([kind(scene.kind, { fair: true }), kind(`${scene.kind}:done`)]);
  await scenario.prepare(scene);
  const [a, b] = scenario.verbs;
  const [one, other] = isSwapped ? [b, a] : [a, b];
  const [first, second] = [stores[1]!, stores[2]!];
  await first.begin((store) => one(scene, store));
  const isFurther = await goes(first, at);
  await second.begin((store) => other(scene, store));
  await goes(second, Number.POSITIVE_INFINITY);
  await Promise.all([first.finish(), second.finish()]);
  await assertSound(scene);
  await scenario.then?.(scene);
  await assertSound(scene);
  await assertEndsOnce(scene);
  return isFurther;
}

/** Whether it stands before a further statement: it may have come to its end, or to a lock of the other. */
async function goes(store: SteppedStore, statements: number): Promise<boolean> {
  for (let at = 0; at < statements; at++) if ((await store.step()) !== "to a statement") return false;
  return true;
}

async function assertSound(scene: Scene): Promise<void> {
  const isAlone = "EXISTS (SELECT 1 FROM outlive.lone_batches l WHERE l.kind = j.kind AND l.batch = b.batch)";
  assert.equal(
    await scene.count(`j.state = 0 AND j.lane = 1 AND NOT ${isAlone}`),
    0,
    "blocks without a key are of a batch that is alone",
  );
  const isBounded =
    "EXISTS (SELECT 1 FROM outlive.keys k WHERE k.id = s.ring AND (k.paused_at IS NOT NULL OR k.running IS NOT NULL))";
  assert.equal(
    await scene.count(`(j.state = 1 OR j.lane IN (1, 2)) AND ${isBounded}`),
    0,
    "every block of a bounded key counts for it",
  );
}

/** Both batches have their turn, and each block runs once. */
async function assertEndsOnce(scene: Scene): Promise<void> {
  const ended = new Set<string>();
  await workers[0]!.settle(...scene.running.map((job) => SETTLE.release(job)));
  const left = (): Promise<number> =>
    count(
      "SELECT count(*)::int AS n FROM outlive.jobs WHERE state < 2 AND kind = (SELECT id FROM outlive.kinds WHERE name = $1)",
      [scene.kind],
    );
  for (let turn = 0; (await left()) > 0; turn++) {
    assert.ok(turn < 20, `${await left()} blocks are left`);
    const claimed = await scene.claim(workers[2]!);
    for (const id of idsOf(claimed)) {
      assert.ok(!ended.has(id), `${id} ran twice`);
      ended.add(id);
    }
    await workers[2]!.settle(...claimed.map((job) => SETTLE.succeed(job)));
  }
}

/** Each verb stopped before each of its statements, until one schedule goes wrong. Returns how many there were. */
async function explore(scenario: Scenario): Promise<number> {
  let schedules = 0;
  for (const isSwapped of [false, true])
    for (let at = 0, isFurther = true; isFurther; at++) {
      schedules++;
      isFurther = await runAt(scenario, isSwapped, at).catch((thrown: unknown) => {
        const which = isSwapped ? "second" : "first";
        throw new Error(`${scenario.name}, with the ${which} stopped before statement ${at}`, { cause: thrown });
      });
    }
  return schedules;
}

for (const scenario of SCENARIOS)
  test(`at the same time: ${scenario.name}`, async (t) => {
    const schedules = await explore(scenario);
    t.diagnostic(`${schedules} schedules`);
    assert.ok(schedules >= 8, "the verbs have several statements");
  });

interface Mutant {
  readonly name: string;
  readonly in: string;
  readonly from: string;
  readonly to: string;
  /** The scenario that finds it. */
  readonly foundBy: string;
}

const MUTANTS: readonly Mutant[] = [
  {
    name: "an append does not hold the row that says who is alone",
    in: "is_alone",
    from: "l.batch = of_batch FOR SHARE SKIP LOCKED",
    to: "l.batch = of_batch",
    foundBy: "more blocks, and a pause",
  },
  {
    name: "a batch becomes the only one without the lock of its key",
    in: "is_alone",
    from: "NOT pg_try_advisory_xact_lock_shared",
    to: "false AND NOT pg_try_advisory_xact_lock_shared",
    foundBy: "the first blocks, and a pause",
  },
  {
    name: "blocks are added as ready ones while another batch waits",
    in: "is_alone",
    from: "e.ring > of_ring",
    to: "false",
    foundBy: "more blocks, and the first ones of another batch",
  },
  {
    name: "a block that returns does not hold the row that says who is alone",
    in: "note_move",
    from: "FOR KEY SHARE SKIP LOCKED",
    to: "",
    foundBy: "blocks that return, and a pause",
  },
  {
    name: "a block that returns stays among the ready jobs, whichever batch is alone",
    in: "note_move",
    from: "b.ring IS NOT NULL",
    to: "false",
    foundBy: "blocks that return, and another batch",
  },
  {
    name: "no batch is alone any more, and blocks that could not be moved stay as they are",
    in: "to_gate",
    from: "IF cardinality(moved) < most AND NOT EXISTS",
    to: "IF true OR NOT EXISTS",
    foundBy: "another batch, while a transaction of someone else holds a block",
  },
  {
    name: "a pause does not wait for claims that are under way",
    in: "bound_batch",
    from: "ORDER BY j.seq FOR NO KEY UPDATE OF j);",
    to: "ORDER BY j.seq FOR NO KEY UPDATE OF j SKIP LOCKED);",
    foundBy: "a claim that is not committed, and a pause",
  },
  {
    name: "a pause leaves suspects to workers",
    in: "bound_batch",
    from: "j.lane = 2",
    to: "j.lane = 9",
    foundBy: "suspects, a pause, and another batch",
  },
  {
    name: "a pause does not count what runs",
    in: "bound_batch",
    from: "j.state = 1",
    to: "j.state = 9",
    foundBy: "a claim that is not committed, and a pause",
  },
];

for (const mutant of MUTANTS)
  test(`a mutant is found: ${mutant.name}`, async () => {
    const {
      rows: [found],
    } = await look.query<{ text: string }>("SELECT pg_get_functiondef($1::regproc) AS text", [`outlive.${mutant.in}`]);
    assert.ok(found!.text.includes(mutant.from), `${mutant.in} has what is to be changed`);
    await look.query(found!.text.replace(mutant.from, mutant.to));
    try {
      await assert.rejects(explore(SCENARIOS.find(({ name }) => name === mutant.foundBy)!));
    } finally {
      await holder.query("ROLLBACK");
      await look.query(found!.text);
    }
  });
