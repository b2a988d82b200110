// What batches and schedules are found by follows from their records and those of their jobs: whichever is lost is noticed, and a repair makes it as it was.
import assert from "node:assert/strict";
import { test } from "node:test";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { ScheduleRow } from "../../src/job/schedules.ts";
import type { Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { batchDraft, blocksOf, failedRow } from "../../src/testing/conformance/batch-fixture.ts";
import { draft, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { contents, freshName } from "../support/redis.ts";

/** One batch has ended with a failed block, and one is aborted in pieces; each has a block of rejected rows only. One schedule has fired. */
async function furnish(store: Store): Promise<void> {
  const [batches, schedules] = [store.batches!, store.schedules!];
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  for (const id of ["ended", "aborted"]) {
    await batches.open(batchDraft(id, { key: `key-${id}` }));
    const rejected = { number: 2, job: null, rows: 0, rejected: [failedRow(0, 3)] };
    await batches.append(id, 1, [...blocksOf(id, [1, 1]), rejected]);
    if (id === "aborted") continue;
    const { claimed } = await store.turn("w", [], roomFor(9));
    await store.turn("w", [SETTLE.succeed(claimed[0]!), SETTLE.failForGood(claimed[1]!)], roomFor(0));
    await batches.seal(id, 1);
    await batches.finish({ batch: id, round: 1, from: "sealed", to: "completed", follow: [] });
  }
  await batches.abort("aborted");
  const { id: _, ...job } = draft("");
  const policies = { missed: "latest", withinMs: 9e8, overlap: "skip", jitterMs: 0 } as const;
  const row: ScheduleRow = {
    ...policies,
    name: "nightly",
    kind: "mail",
    version: 0,
    timing: { everyMs: 9e8, fromMs: 0 },
    draft: job,
    nextAt: 5,
    dueAt: 5,
    lastAt: null,
    lastJob: null,
    fired: 0,
    skipped: { missed: 0, "too-old": 0, overlap: 0 },
    pause: null,
    origin: "api",
    digest: "d",
    former: [],
    zoneData: null,
    createdAt: 1,
    changedAt: 1,
  };
  await schedules.write(row);
  const stored = (await schedules.get("nightly"))!;
  const jobs = [{ draft: draft({ id: "planned", kind: "mail" }), at: 5, caughtUp: false }];
  await schedules.fire([{ row: { ...stored, dueAt: 9e12 }, jobs }]);
}

const INDEXES = /:(bi|bk:\d+|bl|be|bx|bb:.+|bf:.+|sk|sn|sd|so:.+)$/;

test("each index of batches and schedules that is lost is found, and built again as it was", async (t) => {
  const { url, name } = await freshName(t);
  const address = redisAddress(`${url}?store=${name}`);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  await furnish(store);
  assert.deepEqual(await store.upkeep.integrity(), []);
  const before = await contents(connection);
  const keys = Object.keys(before).filter((key) => INDEXES.test(key.slice(connection.tag.length - 1)));
  const found = new Set(keys.map((key) => key.slice(connection.tag.length).replace(/:.*/s, "")));
  assert.equal([...found].toSorted().join(" "), "bb be bf bi bk bl bx sd sk sn so");
  for (const key of keys) {
    await connection.command("DEL", key);
    assert.notDeepEqual(await store.upkeep.integrity(), [], `${key} is missed`);
    assert.deepEqual(await store.upkeep.repair(), [], `after the loss of ${key}`);
    assert.deepEqual(await contents(connection), before, `after the loss of ${key}`);
  }
  for (const stray of [
    ["HSET", `${connection.tag}bi`, "never", "9"],
    ["ZADD", `${connection.tag}be`, "1", "9"],
    ["ZADD", `${connection.tag}sd`, "1", "never"],
  ]) {
    await connection.command(...stray);
    assert.notDeepEqual(await store.upkeep.integrity(), [], stray.join(" "));
    assert.deepEqual(await store.upkeep.repair(), [], stray.join(" "));
    assert.deepEqual(await contents(connection), before, stray.join(" "));
  }
});

test("counts of a batch that do not agree with its blocks and failures are found", async (t) => {
  const { url, name } = await freshName(t);
  const address = redisAddress(`${url}?store=${name}`);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  await furnish(store);
  while (await store.batches!.tend(1_000));
  assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  for (const count of ["succeeded", "failed", "quarantined", "aborted"]) {
    await connection.command("HINCRBY", `${connection.tag}b:1`, count, "1");
    const found = await store.upkeep.inconsistencies!();
    assert.deepEqual(
      found.map(({ what, names }) => [what, names]),
      [["batch-disagrees", ["ended"]]],
    );
    assert.match(found[0]!.detail, new RegExp(`${count} \\d, its blocks have \\d`));
    await connection.command("HINCRBY", `${connection.tag}b:1`, count, "-1");
  }
});
