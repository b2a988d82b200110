// What the port promises about blame: who is counted at a death, and the lane of the jobs that must run alone, with its reservation.
import assert from "node:assert/strict";
import { BACKGROUND_MS } from "../../core/blame.ts";
import type { JobState } from "../../core/job.ts";
import { type Draft, kind, names } from "./drafts.ts";
import { type Hand, idsOf, roomFor, SETTLE } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";

/** Room in a worker that has something in flight. */
const busyRoom = (total: number, kinds?: readonly string[]): ReturnType<typeof roomFor> => roomFor(total, kinds, false);

export function specifyAlone(specify: Specify): void {
  specify("a job that was alone in its worker when that died is blamed; of several nobody is", async (scene) => {
    await scene.enqueue("a");
    const first = await scene.worker("w1");
    await first.next();
    await scene.bury(first);
    assert.deepEqual(await blamed(scene, "a"), [[1, 1]]);
    await scene.enqueue("b", "c");
    const second = await scene.worker("w2");
    await second.claim(9);
    await scene.bury(second);
    assert.deepEqual(await blamed(scene, "a", "b", "c"), [
      [2, 1],
      [1, 0],
      [1, 0],
    ]);
  });

  specify(
    "who was alone is told by what the worker held at its death, not by what a later transaction finds",
    async (scene) => {
      await scene.enqueue("a", "b", "c");
      const worker = await scene.worker("w");
      await worker.claim(9);
      const first = await scene.recover(worker, { limit: 1 });
      const second = await scene.recover(worker, { limit: 1 });
      const third = await scene.recover(worker, { limit: 1, by: await scene.connect() });
      assert.equal([first, second, third].flatMap(({ jobs }) => jobs).length, 3);
      assert.deepEqual(await blamed(scene, "a", "b", "c"), Array(3).fill([1, 0]));
    },
  );

  specify("museum 9: every death counts, so a job that kills each of its workers ends in quarantine", async (scene) => {
    await scene.enqueue("killer", "bystander");
    const first = await scene.worker("w0");
    await first.claim(2);
    await scene.bury(first);
    const second = await scene.worker("w1");
    assert.deepEqual(idsOf(await second.claim(1)), ["killer"]);
    await scene.bury(second);
    for (const id of ["w2", "w3"]) {
      const worker = await scene.worker(id);
      const claimed = await worker.claim(9);
      assert.deepEqual([idsOf(claimed), claimed[0]?.alone], [["killer"], true]);
      await scene.bury(worker);
    }
    assert.deepEqual(await scene.states("killer", "bystander"), ["quarantined", "queued"]);
    assert.deepEqual(await blamed(scene, "killer", "bystander"), [
      [4, 3],
      [1, 0],
    ]);
  });

  specify(
    "museum 10: the last crash of a job is told: by its state, its error, its history and the incident",
    async (scene) => {
      await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      await worker.next();
      const { incident, jobs } = await scene.bury(worker);
      assert.deepEqual([jobs[0]?.decision, jobs[0]?.limit], ["quarantine", 1]);
      const job = await scene.job("a");
      assert.deepEqual([job.state, job.lastOutcome, job.error?.name], ["quarantined", "crashed", "WorkerDied"]);
      assert.equal(job.finishedAt, scene.clock.now());
      const entry = job.history.at(-1);
      assert.deepEqual([entry?.event, entry?.to, entry?.incident], ["crash", "quarantined", incident]);
      assert.equal((await scene.countsOf("mail")).quarantined, 1);
    },
  );

  specify(
    "a job is not blamed while as many workers die that did not hold it, and is when it stands out again",
    async (scene) => {
      await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 2 } }));
      await scene.enqueue("a");
      for (const id of ["idle1", "idle2"]) await scene.bury(await scene.worker(id));
      assert.deepEqual(await dyingAlone(scene, "a", 3), ["queued", "queued", "quarantined"]);
      assert.deepEqual(await blamed(scene, "a"), [[3, 3]]);
    },
  );

  specify("however many others die, three times its limit of deaths alone is the end of a job", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await scene.enqueue("a");
    for (const id of names("idle", 9)) await scene.bury(await scene.worker(id));
    assert.deepEqual(await dyingAlone(scene, "a", 3), ["queued", "queued", "quarantined"]);
  });

  specify("deaths of long ago, before the first crash of a job, say nothing about its own", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await scene.enqueue("a");
    for (const id of names("idle", 9)) await scene.bury(await scene.worker(id));
    await scene.clock.advance(BACKGROUND_MS + 1);
    assert.deepEqual(await dyingAlone(scene, "a", 1), ["quarantined"]);
  });

  specify("an idle worker takes a job that must run alone, says so, and takes nothing beside it", async (scene) => {
    await suspect(scene, "a");
    await scene.enqueue("other", { id: "less", priority: -9 });
    const worker = await scene.worker("w");
    const claimed = await worker.claim(9);
    assert.deepEqual([idsOf(claimed), claimed[0]?.alone], [["a"], true]);
  });

  specify(
    "an ordinary job of a higher priority goes before one that must run alone, and nothing else does",
    async (scene) => {
      await suspect(scene, { id: "a", priority: 5 });
      await scene.enqueue(
        "low",
        { id: "same", priority: 5 },
        { id: "high", priority: 6 },
        { id: "sms", kind: "sms", priority: 7 },
      );
      const worker = await scene.worker("w");
      const first = await worker.turn([], roomFor(9));
      assert.deepEqual([idsOf(first.claimed), first.emptying], [["sms", "high"], true]);
      assert.deepEqual(idsOf((await worker.turn([], busyRoom(7))).claimed), [], "it runs them and claims nothing else");
      const settled = first.claimed.map((job) => SETTLE.succeed(job));
      assert.deepEqual(idsOf((await worker.turn(settled, roomFor(9))).claimed), ["a"]);
    },
  );

  specify(
    "a worker that empties itself still claims what has a higher priority, each kind within its room",
    async (scene) => {
      await suspect(scene, "a");
      const worker = await scene.worker("w");
      assert.equal((await worker.turn([], busyRoom(9))).emptying, true);
      const drafts = ["mail", "sms"].flatMap((kind) => names(kind, 3).map((id) => ({ id, kind, priority: 1 })));
      await scene.enqueue(...drafts, "low");
      const limited = [
        { kind: "mail", room: 1 },
        { kind: "sms", room: 9 },
      ];
      const first = await worker.turn([], { total: 3, kinds: limited, idle: false });
      assert.deepEqual([idsOf(first.claimed), first.emptying], [["mail0001", "sms0001", "sms0002"], true]);
      const shared = ["mail", "sms"].map((kind) => ({ kind, room: 2, shares: true }));
      const second = await worker.turn([], { total: 9, kinds: shared, idle: false });
      assert.deepEqual([idsOf(second.claimed), second.emptying], [["mail0002", "mail0003"], true]);
      const third = await worker.turn([], busyRoom(9));
      assert.deepEqual([idsOf(third.claimed), third.emptying], [["sms0003"], true]);
    },
  );

  specify("of jobs that must run alone those of a higher priority go first", async (scene) => {
    await suspect(scene, "low", { id: "high", priority: 3 }, { id: "middle", priority: 2 });
    const order: string[] = [];
    for (const id of names("w", 3)) order.push(...idsOf(await (await scene.worker(id)).claim(9)));
    assert.deepEqual(order, ["high", "middle", "low"]);
  });

  specify(
    "a busy worker reserves a job that must run alone and claims nothing else, while the others go on",
    async (scene) => {
      await suspect(scene, "a");
      const first = await scene.worker("w1");
      const second = await scene.worker("w2", { store: await scene.connect() });
      await scene.enqueue("x", "y", "z");
      const reserving = await first.turn([], busyRoom(9));
      assert.deepEqual([idsOf(reserving.claimed), reserving.emptying], [[], true]);
      const going = await second.turn([], busyRoom(1));
      assert.deepEqual([idsOf(going.claimed), going.emptying ?? false], [["x"], false]);
      assert.deepEqual(idsOf(await first.claim(busyRoom(9))), [], "it still waits until it is idle");
      const idle = await first.claim(9);
      assert.deepEqual([idsOf(idle), idle[0]?.alone], [["a"], true]);
      await first.settle(SETTLE.succeed(idle[0]!));
      assert.deepEqual(idsOf(await first.claim(busyRoom(9))), ["y", "z"]);
    },
  );

  specify(
    "a job that another worker has reserved goes to the first that is idle, and the other is free again",
    async (scene) => {
      await suspect(scene, "a");
      const busy = await scene.worker("busy");
      const idle = await scene.worker("idle");
      await scene.enqueue("x");
      assert.deepEqual(idsOf(await busy.claim(busyRoom(9))), [], "it reserves");
      assert.deepEqual(idsOf(await idle.claim(9)), ["a"]);
      assert.deepEqual(idsOf(await busy.claim(busyRoom(9))), ["x"]);
    },
  );

  specify(
    "when ordinary jobs have their turn, a busy worker gives its reservation up and claims as usual",
    async (scene) => {
      await suspect(scene, "a");
      await scene.enqueue("x", "y", "z");
      const holder = await scene.worker("holder");
      const other = await scene.worker("other");
      assert.equal((await holder.turn([], busyRoom(1))).emptying, true);
      assert.deepEqual(idsOf(await other.claim(busyRoom(1))), ["x"], "it leaves the job to the holder");
      const turn = await holder.turn([], { ...busyRoom(1), ordinaryFirst: true });
      assert.deepEqual([idsOf(turn.claimed), turn.emptying ?? false], [["y"], false]);
      assert.equal((await other.turn([], busyRoom(1))).emptying, true, "now it empties itself");
      assert.deepEqual(idsOf(await holder.claim({ ...busyRoom(1), ordinaryFirst: true })), ["z"]);
      assert.deepEqual(idsOf(await other.claim(9)), ["a"]);
    },
  );

  specify(
    "when ordinary jobs have their turn, an idle worker takes a job that must run alone only if no other of its priority is ready",
    async (scene) => {
      await suspect(scene, "a");
      await scene.enqueue("same", { id: "low", priority: -1 });
      const room = { ...roomFor(1), ordinaryFirst: true };
      const worker = await scene.worker("w");
      const [same] = await worker.claim(room);
      assert.equal(same?.lease.jobId, "same");
      const alone = (await worker.turn([SETTLE.succeed(same)], room)).claimed;
      assert.deepEqual([idsOf(alone), alone[0]?.alone], [["a"], true]);
      const rest = (await worker.turn([SETTLE.succeed(alone[0]!)], room)).claimed;
      assert.deepEqual(idsOf(rest), ["low"]);
    },
  );

  specify("which workers are taken up by jobs that must run alone is known, and by which", async (scene) => {
    await suspect(scene, { id: "a", priority: 2 });
    const worker = await scene.worker("w");
    assert.deepEqual(await scene.store.isolations(), []);
    await worker.claim(busyRoom(9));
    const isolation = { worker: "w", jobId: "a", priority: 2 };
    assert.deepEqual(await scene.store.isolations(), [{ ...isolation, doing: "emptying", startedAt: null }]);
    const [job] = await worker.claim(9);
    const startedAt = scene.clock.now();
    assert.deepEqual(await scene.store.isolations(), [{ ...isolation, doing: "running", startedAt }]);
    await worker.settle(SETTLE.succeed(job!));
    assert.deepEqual(await scene.store.isolations(), []);
  });

  for (const end of ["dies", "stops"]) {
    specify(`museum 20: the reservation of a worker that ${end} is taken over`, async (scene) => {
      await suspect(scene, "a");
      await scene.enqueue("x", "y");
      const holder = await scene.worker("holder");
      const heir = await scene.worker("heir");
      assert.deepEqual(idsOf(await holder.claim(busyRoom(9))), [], "it reserves");
      assert.deepEqual(idsOf(await heir.claim(busyRoom(1))), ["x"], "it goes on");
      if (end === "dies") await scene.bury(holder);
      else assert.equal(await scene.store.deregister("holder"), true);
      assert.deepEqual(idsOf(await heir.claim(busyRoom(9))), [], "it reserves in its turn");
      assert.deepEqual(idsOf(await heir.claim(9)), ["a"]);
    });
  }

  specify("of jobs that must run alone those with the fewest crashes go first, then the oldest", async (scene) => {
    await suspect(scene, "killer", "beside", "too");
    const first = await scene.worker("first");
    assert.deepEqual(idsOf(await first.claim(9)), ["killer"]);
    await scene.bury(first);
    const order: string[] = [];
    for (const id of names("next", 3)) order.push(...idsOf(await (await scene.worker(id)).claim(9)));
    assert.deepEqual(order, ["beside", "too", "killer"]);
  });

  specify(
    "jobs that run alone take up a quarter of the fleet, at least one worker; the others go on",
    async (scene) => {
      await suspect(scene, "a", "b", "c");
      await scene.enqueue("x1", "x2", "x3");
      const workers = [];
      for (let n = 1; n <= 8; n++) workers.push(await scene.worker(`w${n}`));
      // Without room nobody reserves: if the first two did, the others would go on below.
      for (const worker of workers.slice(0, 2)) await worker.claim(busyRoom(0));
      const asked = workers.slice(0, 4).toReversed();
      const claims: (readonly string[])[] = [];
      for (const worker of asked) claims.push(idsOf(await worker.claim(busyRoom(1))));
      assert.deepEqual(claims, [[], [], ["x1"], ["x2"]], "two of eight reserve");
      assert.deepEqual(idsOf(await asked[0]!.claim(9)), ["a"]);
      assert.deepEqual(idsOf(await asked[1]!.claim(busyRoom(9))), []);
      assert.deepEqual(idsOf(await workers[6]!.claim(busyRoom(9))), ["x3"]);
      assert.deepEqual(idsOf(await workers[4]!.claim(9)), ["b"], "an idle one takes over what is reserved");
      assert.deepEqual(
        idsOf(await workers[5]!.claim(9)),
        ["c"],
        "and who has nothing else to do takes one in any case",
      );
    },
  );

  specify("a worker that can't run the kind, or has no room for it, neither reserves nor takes it", async (scene) => {
    await suspect(scene, "a");
    await scene.enqueue({ id: "x", kind: "sms" }, { id: "y", kind: "sms" });
    const worker = await scene.worker("w");
    assert.deepEqual(idsOf(await worker.claim(busyRoom(1, ["sms"]))), ["x"]);
    const kinds = [
      { kind: "mail", room: 0 },
      { kind: "sms", room: 9 },
    ];
    assert.deepEqual(idsOf(await worker.claim({ total: 9, kinds, idle: true })), ["y"]);
    assert.deepEqual(await scene.states("a"), ["queued"]);
  });

  specify("a job of a paused kind that must run alone holds nobody up", async (scene) => {
    await suspect(scene, "a");
    await scene.enqueue({ id: "x", kind: "sms" });
    await scene.store.setPaused("mail", true);
    assert.deepEqual(idsOf(await (await scene.worker("w")).claim(busyRoom(9))), ["x"]);
  });

  specify(
    "museum 6: many jobs that must run alone, of a kind that a worker can't run, do not hide the one that it can",
    async (scene) => {
      await suspect(scene, ...names("hidden", 150));
      await scene.declare(kind("fax"));
      await suspect(scene, { id: "seen", kind: "fax" });
      const worker = await scene.worker("w");
      assert.deepEqual(idsOf(await worker.claim(roomFor(9, ["fax"]))), ["seen"]);
    },
  );

  specify(
    "a job that must run alone still must after a retry that waited, and no longer after a new step",
    async (scene) => {
      await suspect(scene, "a");
      const worker = await scene.worker("w");
      const job = await worker.next();
      await worker.settle(SETTLE.fail(job, 5_000));
      await scene.clock.advance(5_000);
      const again = await worker.next();
      assert.equal(again.alone, true);
      await worker.record(again, { type: "step", name: "render", result: null });
      await worker.settle(SETTLE.release(again));
      assert.equal((await worker.next()).alone, false);
    },
  );

  specify("a job that was redriven by hand runs beside others again", async (scene) => {
    await suspect(scene, "a");
    await scene.store.cancel("a", "operator");
    await scene.store.retry("a", "operator");
    await scene.enqueue("b");
    assert.deepEqual(idsOf(await (await scene.worker("w")).claim(busyRoom(9))), ["a", "b"]);
  });

  specify("a job that waits to run alone is counted as ready, and can be cancelled", async (scene) => {
    await suspect(scene, "a");
    assert.equal((await scene.countsOf("mail")).ready, 1);
    assert.deepEqual(await scene.store.cancel("a", "operator"), { is: "applied", state: "cancelled" });
    await scene.enqueue("b");
    assert.deepEqual(idsOf(await (await scene.worker("w")).claim(busyRoom(9))), ["b"]);
  });
}

let deaths = 0;

/** Enqueues these and lets two workers die over them, together with a companion so that nobody is blamed. */
async function suspect(scene: Scene, ...said: readonly (string | Draft)[]): Promise<void> {
  const kinds = said.map((one) => (typeof one === "string" ? "mail" : (one.kind ?? "mail")));
  const companion = `companion-${++deaths}`;
  await scene.enqueue(...said, { id: companion, kind: kinds[0]! });
  for (const death of [1, 2]) {
    const worker: Hand = await scene.worker(`${companion}-${death}`);
    assert.equal((await worker.claim(busyRoom(said.length + 1, [...new Set(kinds)]))).length, said.length + 1);
    await scene.bury(worker);
  }
  await scene.store.cancel(companion, "operator");
}

/** Crashes and blame of each. */
/** The states of a job after each of so many deaths of workers that held only it. */
async function dyingAlone(scene: Scene, id: string, times: number): Promise<readonly (JobState | "missing")[]> {
  const states: (JobState | "missing")[] = [];
  for (const worker of names("alone", times)) {
    const hand = await scene.worker(worker);
    assert.deepEqual(idsOf(await hand.claim(1)), [id]);
    await scene.bury(hand);
    states.push(...(await scene.states(id)));
  }
  return states;
}

async function blamed(scene: Scene, ...ids: readonly string[]): Promise<readonly (readonly number[])[]> {
  const jobs = await Promise.all(ids.map((id) => scene.job(id)));
  return jobs.map(({ counters }) => [counters.crashes, counters.blamed]);
}
