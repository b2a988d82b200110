// C2: a lost connection to PostgreSQL is not a death. The worker runs in a PID namespace of its own, so that no kernel can prove
// anything about it to the others, as on another host.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { slow } from "../postgres/jobs.ts";
import { PostgresPlace } from "../postgres/place.ts";
import { untilTrue } from "../support/processes.ts";
import { resettingProxy } from "./resetting-proxy.ts";
import { attemptOf } from "../support/former-names.ts";

/** How long each blip lasts. Long enough that two looks 250 ms apart find the session missing, shorter than `contact`. */
const BLIP_MS = 1_200;

/** Whether every live worker's session is there, with its lock. */
function untilAllInContact(place: PostgresPlace): Promise<unknown> {
  return untilTrue(
    () =>
      place.query(`SELECT f.id FROM outlive.fleet f WHERE f.state = 'live' AND NOT EXISTS (
        SELECT 1 FROM pg_locks l WHERE l.granted AND f.lock_name = ((l.classid::bigint << 32) | l.objid::bigint)::text)`),
    (missing) => missing.length === 0,
    "every worker's session is back",
  );
}

/** Every live worker has beaten so many times more: the others have seen its session by then. */
async function untilBeats(place: PostgresPlace, more: number): Promise<void> {
  const beats = () =>
    place.query<{ id: string; beats: string }>("SELECT id, beats FROM outlive.fleet WHERE state = 'live'");
  const before = await beats();
  await untilTrue(
    beats,
    (now) =>
      before.every(({ id, beats: was }) =>
        now.every((row) => row.id !== id || Number(row.beats) >= Number(was) + more),
      ),
    `every worker has beaten ${more} times more`,
  );
}

test("C2: three short losses of its connection cost a running job nothing, and it is not run a second time", async (t) => {
  const place = await PostgresPlace.shared(t);
  const proxy = await resettingProxy(t, place.url);
  const engine = await place.engine();
  const cutOff = place.child({ url: proxy.url, elsewhere: true });
  await cutOff.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await cutOff.untilFact("started", { id });
  const other = place.child();
  await other.untilFact("working");
  for (let blip = 0; blip < 3; blip++) {
    proxy.refuse();
    await pause(BLIP_MS);
    proxy.accept();
    await untilAllInContact(place);
    await untilBeats(place, 3);
  }
  const job = await engine.get(id);
  assert.deepEqual([job!.state, attemptOf(job!), job!.counters.crashes, job!.counters.blamed], ["running", 1, 0, 0]);
  assert.deepEqual(await engine.incidents(), []);
});

test("C2: contact that stays lost costs a job its attempt, and counts nothing when the worker turns out to live", async (t) => {
  const place = await PostgresPlace.shared(t);
  const proxy = await resettingProxy(t, place.url);
  const engine = await place.engine();
  const cutOff = place.child({ url: proxy.url, elsewhere: true });
  await cutOff.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await cutOff.untilFact("started", { id });
  const other = place.child();
  await other.untilFact("working");
  proxy.refuse();
  await other.untilFact("started", { id, attempt: 2 });
  const taken = await engine.get(id);
  assert.deepEqual([taken!.counters.crashes, taken!.counters.blamed], [0, 0], "nothing is counted without a proof");
  proxy.accept();
  await cutOff.untilEvent("worker.disowned");
  await untilTrue(
    () => engine.incidents(),
    ([incident]) => incident!.how === "lost" && incident!.resolution === "returned",
    "the worker has returned",
  );
  await untilTrue(
    () => engine.get(id),
    (job) => job!.counters.losses === 0,
    "the loss is resolved for its job",
  );
  const job = await engine.get(id);
  assert.deepEqual([job!.state, attemptOf(job!), job!.counters.crashes], ["running", 2, 0]);
});
