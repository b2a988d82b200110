// What the port promises about pauses with an end, expiry, promotion, removal, the retention of kinds, changes of many jobs at once, and the audit, which says
// about each of them what was really changed.
import assert from "node:assert/strict";
import type { AuditAction, AuditEntry } from "../../job/audit.ts";
import type { ClaimedJob } from "../../job/job.ts";
import { STEPS } from "../../job/collections.ts";
import { jobKey } from "../../job/limits.ts";
import { wait } from "../../job/transitions.ts";
import type { HandChange, OperatorAnswer, Settlement } from "../../stores/port.ts";
import { batchDraft, batchSpecifier } from "./batch-fixture.ts";
import { scheduleRow } from "./schedules.ts";
import {
  draft,
  type Fixture,
  type TestWorker,
  recoverOnce,
  idsOf,
  kind,
  names,
  NO_ROOM,
  roomFor,
  SETTLE,
  type Specify,
} from "./fixture.ts";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const MAIL = roomFor(9, ["mail"]);
const SMS = roomFor(9, ["sms"]);
const PER_CUSTOMER = { name: "customer", running: 1, intervalMs: null, burst: 1, strict: false };

export function specifyOperations(specify: Specify): void {
  specifyPauses(specify);
  specifyExpiry(specify);
  specifyPromotion(specify);
  specifyRemoval(specify);
  specifyRetention(specify);
  specifyMany(specify);
  specifyAudit(specify);
}

function specifyPauses(specify: Specify): void {
  specify("a pause says who, why and until when, and ends then although no process does anything", async (fixture) => {
    const { clock, store } = fixture;
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    const until = clock.now() + HOUR_MS;
    const how = { actor: "ann", reason: "the provider is down", untilAt: until, forMs: null };
    assert.equal(await store.operate.setPaused("mail", true, how), true);
    const { paused, pause } = await fixture.countsOf("mail");
    assert.deepEqual([paused, pause], [true, { by: "ann", reason: how.reason, at: clock.now(), until }]);
    const turn = await worker.turn([], MAIL);
    assert.deepEqual(turn.claimed, []);
    await clock.advance(HOUR_MS - 1);
    assert.deepEqual(await worker.claim(MAIL), []);
    await clock.advance(1);
    const now = await fixture.countsOf("mail");
    assert.deepEqual([now.paused, now.pause], [false, undefined]);
    assert.deepEqual(idsOf(await worker.claim(MAIL)), ["a"]);
  });

  specify(
    "a pause for this long counts from the store's clock, a second one replaces it, a resume ends it",
    async (fixture) => {
      const { clock, store } = fixture;
      const forAnHour = { actor: "ann", reason: null, untilAt: null, forMs: HOUR_MS };
      await store.operate.setPaused("mail", true, forAnHour);
      assert.equal((await fixture.countsOf("mail")).pause?.until, clock.now() + HOUR_MS);
      await store.operate.setPaused("mail", true, { ...forAnHour, actor: "bob", forMs: null });
      assert.deepEqual((await fixture.countsOf("mail")).pause, {
        by: "bob",
        reason: null,
        at: clock.now(),
        until: null,
      });
      await clock.advance(2 * HOUR_MS);
      assert.equal((await fixture.countsOf("mail")).paused, true);
      await store.operate.setPaused("mail", false);
      assert.equal((await fixture.countsOf("mail")).paused, false);
      await store.operate.setPaused("mail", true);
      assert.equal((await fixture.countsOf("mail")).paused, true);
      assert.equal((await fixture.countsOf("mail")).pause?.until, null, "nothing is left of the former one");
    },
  );

  specify("kinds that are declared again stay paused as they were", async (fixture) => {
    await fixture.store.operate.setPaused("mail", true, { actor: "ann", reason: "r", untilAt: null, forMs: HOUR_MS });
    const before = await fixture.countsOf("mail");
    await fixture.declare(kind("mail"), kind("sms"));
    assert.deepEqual(await fixture.countsOf("mail"), before);
  });
}

function specifyExpiry(specify: Specify): void {
  specify("a job that no attempt has begun in time is cancelled as expired, and is never claimed", async (fixture) => {
    const { clock } = fixture;
    await fixture.enqueue({ id: "a", expiresMs: HOUR_MS }, { id: "other", kind: "sms" });
    const worker = await fixture.worker("w");
    assert.equal((await fixture.job("a")).expiresAt, clock.now() + HOUR_MS);
    await clock.advance(HOUR_MS - 1);
    const before = await worker.turn([], NO_ROOM);
    assert.deepEqual(await fixture.states("a"), ["queued"]);
    assert.equal(before.nextDueInMs, 1, "a worker knows when to look again");
    await clock.advance(1);
    assert.deepEqual(idsOf(await worker.claim(roomFor(9))), ["other"], "any worker's turn ends it before it claims");
    const job = await fixture.job("a");
    assert.deepEqual(
      [job.state, job.lastOutcome, job.finishedAt, job.error?.code, job.expiresAt],
      ["cancelled", "expired", clock.now(), "EXPIRED", undefined],
    );
    const [entry, ...more] = job.history;
    assert.deepEqual([entry?.event, entry?.actor, more], ["expire", "system/expiry", []]);
    assert.equal((await fixture.countsOf("mail")).cancelled, 1);
  });

  specify("the time counts from when it was due, and a job that began in time does not expire", async (fixture) => {
    const { clock } = fixture;
    await fixture.enqueue(
      { id: "delayed", delayMs: DAY_MS, expiresMs: HOUR_MS },
      { id: "begun", kind: "sms", expiresMs: HOUR_MS },
    );
    const worker = await fixture.worker("w");
    const [begun] = await worker.claim(SMS);
    await worker.settle(SETTLE.fail(begun!, DAY_MS));
    await clock.advance(DAY_MS - 1);
    await worker.turn([], NO_ROOM);
    assert.deepEqual(await fixture.states("delayed", "begun"), ["queued", "queued"]);
    await clock.advance(HOUR_MS + 1);
    assert.deepEqual(idsOf(await worker.claim(roomFor(9))), ["begun"]);
    assert.deepEqual(await fixture.states("delayed"), ["cancelled"]);
  });

  specify(
    "an expiry has the consequences of any end: the parent wakes, keys have room, the dedupe key is free",
    async (fixture) => {
      const { clock } = fixture;
      await fixture.declare(kind("mail"), kind("sms", { keyed: [PER_CUSTOMER] }));
      const keys = [jobKey("customer", "acme")];
      await fixture.enqueue("parent");
      const worker = await fixture.worker("w");
      const parent = await worker.next(MAIL);
      const child = { id: "child", kind: "sms", keys, dedupeKey: "k", priority: 9, expiresMs: HOUR_MS };
      await worker.record(parent, { type: "enqueue", drafts: [draft(child)] });
      await fixture.enqueue({ id: "next", kind: "sms", keys });
      await worker.settle(waiting(parent, "child"));
      await clock.advance(HOUR_MS);
      const claimed = await claimAll(worker);
      assert.deepEqual(claimed.toSorted(), ["next", "parent"]);
      assert.deepEqual(await fixture.store.inspect.outcomes(["child"]).then(([one]) => one?.state), "cancelled");
      assert.deepEqual(await fixture.enqueue({ id: "again", kind: "sms", keys, dedupeKey: "k" }), [
        { id: "again", created: true },
      ]);
    },
  );

  specify(
    "paused and held jobs expire, too, many of them in several turns, and none of them is claimed meanwhile",
    async (fixture) => {
      const { clock, store } = fixture;
      const ids = names("j", 1_200);
      await fixture.enqueue(...ids.map((id) => ({ id, expiresMs: HOUR_MS })), {
        id: "paused",
        kind: "sms",
        expiresMs: 1,
      });
      await store.operate.setPaused("sms", true);
      await clock.advance(HOUR_MS);
      const worker = await fixture.worker("w");
      for (let turns = 0; turns < 1_000; turns++) {
        const turn = await worker.turn([], roomFor(9));
        assert.deepEqual(idsOf(turn.claimed), []);
        if (turn.nextDueInMs !== 0) break;
      }
      const { cancelled, ready } = await fixture.countsOf("mail");
      assert.deepEqual([cancelled, ready, await fixture.states("paused")], [1_200, 0, ["cancelled"]]);
    },
  );

  specify(
    "a retry of an expired job, or of one that was cancelled before, has all the time that it needs",
    async (fixture) => {
      await fixture.enqueue({ id: "expired", expiresMs: 1 }, { id: "cancelled", expiresMs: HOUR_MS });
      const worker = await fixture.worker("w");
      await fixture.store.operate.cancel("cancelled", "ann");
      await fixture.clock.advance(1);
      await worker.turn([], NO_ROOM);
      for (const id of ["expired", "cancelled"])
        assert.deepEqual(await fixture.store.operate.retry(id, "ann"), { is: "applied", state: "queued" });
      await fixture.clock.advance(DAY_MS);
      assert.deepEqual(idsOf(await worker.claim(MAIL)).toSorted(), ["cancelled", "expired"]);
    },
  );

  specify("an enqueue that replaces a job replaces its expiry", async (fixture) => {
    const dedupe = { then: "replace" } as const;
    await fixture.enqueue({ id: "a", dedupeKey: "k", dedupe, expiresMs: HOUR_MS });
    await fixture.enqueue({ id: "b", dedupeKey: "k", dedupe });
    assert.equal((await fixture.job("a")).expiresAt, undefined);
    await fixture.enqueue({ id: "c", dedupeKey: "k", dedupe, expiresMs: DAY_MS });
    assert.equal((await fixture.job("a")).expiresAt, fixture.clock.now() + DAY_MS);
    await fixture.clock.advance(DAY_MS);
    const worker = await fixture.worker("w");
    assert.deepEqual(await worker.claim(MAIL), []);
    assert.deepEqual(await fixture.states("a"), ["cancelled"]);
  });
}

function specifyPromotion(specify: Specify): void {
  specify(
    "a promoted job is ready at once, whether it was delayed or in backoff, and its history says who did it",
    async (fixture) => {
      await fixture.enqueue({ id: "delayed", delayMs: DAY_MS }, { id: "backoff", kind: "sms" });
      const worker = await fixture.worker("w");
      const [begun] = await worker.claim(SMS);
      await worker.settle(SETTLE.fail(begun!, DAY_MS));
      assert.deepEqual(await worker.claim(roomFor(9)), []);
      const applied = { is: "applied", state: "queued" };
      assert.deepEqual(await change(fixture, ["delayed", "backoff"], { do: "promote" }), [applied, applied]);
      const entry = (await fixture.job("delayed")).history.at(-1);
      assert.deepEqual([entry?.event, entry?.actor], ["promote", "ann"]);
      assert.deepEqual((await fixture.job("backoff")).counters.errors, 1, "its counters stay");
      assert.deepEqual(idsOf(await worker.claim(roomFor(9))).toSorted(), ["backoff", "delayed"]);
    },
  );

  specify("what does not wait for a time is not promoted, and nothing is written about it", async (fixture) => {
    await fixture.enqueue("running", { id: "asleep", kind: "sms" });
    const worker = await fixture.worker("w");
    const [asleep] = await worker.claim(SMS);
    const sleep = { step: "run.sleep#1", forMs: DAY_MS, until: null };
    await worker.settle(asSettled(asleep!, wait(asleepView(asleep!), sleep)));
    await worker.next(MAIL);
    await fixture.enqueue("ready", "ended");
    await fixture.store.operate.cancel("ended", "ann");
    assert.deepEqual(await change(fixture, ["ready", "asleep", "running", "ended", "none"], { do: "promote" }), [
      { is: "not-delayed" },
      { is: "not-delayed" },
      { is: "wrong-state", state: "running" },
      { is: "wrong-state", state: "cancelled" },
      { is: "missing" },
    ]);
    assert.deepEqual(await fixture.store.inspect.audit({ limit: 9 }), []);
  });
}

function specifyRemoval(specify: Specify): void {
  specify("a removed job is gone with all that belongs to it, and its id is new again", async (fixture) => {
    await fixture.enqueue({ id: "a", input: '"secret"' }, "other");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await worker.record(job, { type: "step", name: "s", result: '"secret"' }, { type: "log", message: "secret" });
    await fixture.store.operate.signal({ job: "a", name: "n", payload: '"secret"', id: "one" });
    await worker.settle(SETTLE.succeed(job, '"secret"'));
    assert.deepEqual(await change(fixture, ["a"], { do: "remove" }), [{ is: "removed" }]);
    assert.equal(await fixture.store.inspect.get("a"), null);
    assert.deepEqual(await fixture.store.inspect.outcomes(["a"]), [
      { id: "a", state: "missing", result: null, error: null },
    ]);
    assert.deepEqual(idsIn(await fixture.store.inspect.list({}, 9, null)), ["other"]);
    assert.deepEqual(await fixture.countsOf("mail").then(({ ready, succeeded }) => [ready, succeeded]), [1, 0]);
    assert.deepEqual(await fixture.enqueue("a"), [{ id: "a", created: true }]);
    const { steps, log, history, attempt } = await fixture.job("a");
    assert.deepEqual([steps, log, history, attempt], [[], [], [], 0]);
    assert.deepEqual(await fixture.store.upkeep.integrity(), []);
  });

  specify(
    "the report of an incident keeps that a removed job was in flight, and nothing of its contents",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      const [a, b] = await worker.claim(2);
      for (const job of [a!, b!])
        await worker.record(job, { type: "step", name: "transfer to Ann", result: '"secret"' });
      const request = await fixture.recovery(worker);
      const failing: typeof request.decide = () => {
        throw new Error("account of Ann");
      };
      const { incident } = await recoverOnce(fixture.store, { ...request, decide: failing });
      await recoverOnce(fixture.store, request);
      const other = await fixture.worker("v");
      await other.claim(2);
      await fixture.recover(other);
      assert.deepEqual(await change(fixture, ["a"], { do: "remove" }), [{ is: "removed" }]);
      for (const { id } of await fixture.store.inspect.incidents(9, null)) {
        const report = await fixture.store.inspect.incident(id);
        const found = report!.jobs.map(({ jobId, lastStep, error }) => [jobId, lastStep, error]);
        assert.deepEqual(
          found,
          [
            ["a", null, null],
            ["b", "transfer to Ann", null],
          ],
          id === incident ? "the first" : "the second",
        );
        assert.equal(report!.jobs.find(({ jobId }) => jobId === "a")?.counters.crashes, id === incident ? 1 : 2);
      }
    },
  );

  specify(
    "an old lease never names a new job, also if the job with the highest number was removed",
    async (fixture) => {
      await fixture.enqueue("old");
      const worker = await fixture.worker("w");
      const old = await worker.next();
      await worker.settle(SETTLE.release(old));
      assert.deepEqual(await change(fixture, ["old"], { do: "remove" }), [{ is: "removed" }]);
      await fixture.enqueue("new");
      const job = await worker.next();
      assert.equal(job.lease.jobId, "new");
      const [stale] = await worker.settle(SETTLE.succeed(old));
      assert.equal(stale?.is, "stale");
      assert.deepEqual(await fixture.states("new"), ["running"]);
      assert.deepEqual(idsIn(await fixture.store.inspect.list({}, 9, null)), ["new"]);
      assert.deepEqual(await fixture.store.upkeep.integrity(), []);
    },
  );

  specify(
    "one that has not ended ends first: its parent wakes and finds it removed, keys have room, the dedupe key is free",
    async (fixture) => {
      await fixture.declare(kind("mail"), kind("sms", { keyed: [PER_CUSTOMER] }));
      const keys = [jobKey("customer", "acme")];
      await fixture.enqueue("parent");
      const worker = await fixture.worker("w");
      const parent = await worker.next(MAIL);
      await worker.record(parent, {
        type: "enqueue",
        drafts: [draft({ id: "child", kind: "sms", keys, dedupeKey: "k" })],
      });
      await fixture.enqueue({ id: "next", kind: "sms", keys });
      await worker.settle(waiting(parent, "child"));
      await worker.turn([], NO_ROOM);
      assert.deepEqual(await change(fixture, ["child"], { do: "remove" }), [{ is: "removed" }]);
      assert.deepEqual((await claimAll(worker)).toSorted(), ["next", "parent"]);
      const child = await fixture.job("child");
      assert.deepEqual(
        [child.state, child.lastOutcome, child.error?.code, child.input, child.history, child.corrupt],
        ["cancelled", "removed", "REMOVED", null, [], []],
        "its parent is unfinished, so an empty row stays: a replay does not enqueue it again",
      );
      assert.deepEqual(await fixture.store.operate.retry("child", "ann"), { is: "missing" });
      assert.deepEqual(await fixture.enqueue({ id: "again", kind: "sms", keys, dedupeKey: "k" }), [
        { id: "again", created: true },
      ]);
      assert.deepEqual(await fixture.store.upkeep.integrity(), []);
    },
  );

  specify("a job that waits, or is awaited by another than its parent, can be removed", async (fixture) => {
    await fixture.enqueue("waiter", "asleep", { id: "awaited", kind: "sms" });
    const worker = await fixture.worker("w");
    const [waiter, asleep] = await worker.claim(MAIL);
    const sleep = { step: "run.sleep#1", forMs: DAY_MS, until: null };
    await worker.settle(waiting(waiter!, "awaited"), asSettled(asleep!, wait(asleepView(asleep!), sleep)));
    await worker.turn([], NO_ROOM);
    assert.deepEqual(await change(fixture, ["asleep", "awaited"], { do: "remove" }), [
      { is: "removed" },
      { is: "removed" },
    ]);
    assert.deepEqual(await claimAll(worker), ["waiter"]);
    await fixture.clock.advance(2 * DAY_MS);
    assert.deepEqual(await claimAll(worker), []);
  });

  specify(
    "a running job is not removed, nor one that is not there, and what comes after a removed job goes with it",
    async (fixture) => {
      const dedupe = { then: "rerun" } as const;
      await fixture.enqueue({ id: "a", dedupeKey: "k", dedupe });
      const worker = await fixture.worker("w");
      const job = await worker.next();
      await fixture.enqueue({ id: "b", dedupeKey: "k", dedupe, input: '"secret"' });
      assert.deepEqual(await change(fixture, ["a", "none"], { do: "remove" }), [
        { is: "wrong-state", state: "running" },
        { is: "missing" },
      ]);
      await worker.settle(SETTLE.release(job));
      assert.deepEqual(await change(fixture, ["a"], { do: "remove" }), [{ is: "removed" }]);
      assert.deepEqual(await claimAll(worker), []);
      assert.deepEqual(idsIn(await fixture.store.inspect.list({}, 9, null)), []);
    },
  );
}

function specifyRetention(specify: Specify): void {
  specify("the retention of a kind, by state, goes before that of all", async (fixture) => {
    const { clock, store } = fixture;
    await fixture.declare(kind("mail", { retention: { succeeded: HOUR_MS, dead: 9 * DAY_MS } }), kind("sms"));
    await fixture.enqueue("quick", "dead", "plain", { id: "sms", kind: "sms" });
    const worker = await fixture.worker("w");
    const [quick, dead] = await worker.claim(roomFor(2, ["mail"]));
    const [sms] = await worker.claim(SMS);
    await worker.settle(SETTLE.succeed(quick!), SETTLE.failForGood(dead!), SETTLE.succeed(sms!));
    await store.operate.cancel("plain", "ann");
    await fixture.enqueue("last");
    const keep = { finishedOlderThanMs: DAY_MS, incidentsOlderThanMs: DAY_MS, limit: 100 };
    await clock.advance(HOUR_MS + 1);
    assert.equal((await store.purge(keep)).jobs, 1);
    assert.deepEqual(await fixture.states("quick", "dead", "plain", "sms"), [
      "missing",
      "dead",
      "cancelled",
      "succeeded",
    ]);
    await clock.advance(DAY_MS);
    assert.equal((await store.purge(keep)).jobs, 2);
    assert.deepEqual(await fixture.states("dead", "plain", "sms"), ["dead", "missing", "missing"]);
    await clock.advance(9 * DAY_MS);
    assert.equal((await store.purge(keep)).jobs, 1);
    await fixture.declare(kind("mail"));
    assert.deepEqual(await fixture.states("dead", "last"), ["missing", "queued"]);
  });
}

function specifyMany(specify: Specify): void {
  specify(
    "many jobs are changed in one call, each is answered for itself, and one entry says how many",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      const running = job.lease.jobId;
      const answered = await change(fixture, ["a", "b", "c", "none"], { do: "cancel" }, "bulk-1");
      assert.deepEqual(answered, [
        ...["a", "b", "c"].map((id): OperatorAnswer =>
          id === running ? { is: "requested" } : { is: "applied", state: "cancelled" },
        ),
        { is: "missing" },
      ]);
      assert.deepEqual(await change(fixture, ["b"], { do: "retry" }, "other"), [{ is: "applied", state: "queued" }]);
      await change(fixture, ["b", "none"], { do: "cancel" }, "bulk-1");
      const [other, bulk, ...more] = await fixture.store.inspect.audit({ limit: 9 });
      assert.deepEqual(
        [other?.id, other?.count, bulk?.id, bulk?.count, more],
        ["other", 1, "bulk-1", 4, []],
        "the chunks of a bulk change add up",
      );
      const { at, ...rest } = bulk!;
      assert.equal(at, fixture.clock.now());
      assert.deepEqual(rest, {
        id: "bulk-1",
        actor: "ann",
        action: "cancel",
        target: "jobs",
        reason: "a test",
        count: 4,
      });
    },
  );

  specify("a retry with another input runs with that, and without the steps of the former one", async (fixture) => {
    await fixture.enqueue({ id: "a", input: "1" });
    const worker = await fixture.worker("w");
    const job = await worker.next();
    await worker.record(job, { type: "step", name: "s", result: "1" });
    await worker.settle(SETTLE.failForGood(job));
    assert.deepEqual(await change(fixture, ["a"], { do: "retry", input: '{"n":2}' }), [
      { is: "applied", state: "queued" },
    ]);
    const again = await worker.next();
    assert.deepEqual([again.input, again.steps], ['{"n":2}', []]);
    assert.deepEqual((await fixture.job("a")).corrupt, []);
    assert.deepEqual(await change(fixture, ["a"], { do: "retry", input: "3" }), [
      { is: "wrong-state", state: "running" },
    ]);
    assert.deepEqual((await fixture.job("a")).input, { n: 2 });
  });

  specify(
    "pauses and limits are in the audit; it is listed by pages and by who, what and on what; and it goes with its retention",
    async (fixture) => {
      const { store, clock } = fixture;
      const how = { actor: "bob", reason: "r", untilAt: null, forMs: null };
      await store.operate.setPaused("mail", true, how, entry("1", "pause", "kind mail", "bob"));
      await store.operate.setPaused("never-seen", true, how, entry("2", "pause", "kind never-seen", "bob"));
      await store.operate.setPaused("mail", false, undefined, entry("3", "resume", "kind mail"));
      await store.operate.setLimit(jobKey("l", "k"), { running: 1 }, entry("4", "limit", "key k of limit l"));
      const ids = async (query: object): Promise<readonly string[]> =>
        (await store.inspect.audit({ limit: 9, ...query })).map(({ id }) => id);
      assert.deepEqual(await ids({}), ["4", "3", "1"]);
      assert.deepEqual(await ids({ limit: 2 }), ["4", "3"]);
      assert.deepEqual(await ids({ after: "3" }), ["1"]);
      assert.deepEqual(await ids({ actor: "bob" }), ["1"]);
      assert.deepEqual(await ids({ action: "limit" }), ["4"]);
      assert.deepEqual(await ids({ target: "kind mail" }), ["3", "1"]);
      await clock.advance(DAY_MS);
      await store.operate.setPaused("sms", true, how, entry("5", "pause", "kind sms"));
      await clock.advance(1);
      await store.purge({ finishedOlderThanMs: DAY_MS, incidentsOlderThanMs: DAY_MS, limit: 100 });
      assert.deepEqual(await ids({}), ["5"]);
    },
  );
}

/** What a person did, as the audit has it: the action, on what, and how many. */
async function audited({ store }: Fixture): Promise<readonly string[]> {
  const found = await store.inspect.audit({ limit: 99 });
  return found.map(({ action, target, count, actor }) => `${action} ${target} ${count} by ${actor}`).toReversed();
}

function specifyAudit(specify: Specify): void {
  specify("a signal that is sent by a person is in the audit once, and one that is refused is not", async (fixture) => {
    const { operate } = fixture.store;
    await fixture.enqueue("a");
    const signal = { job: "a", name: "go", payload: "1", id: "s" };
    assert.equal((await operate.signal(signal, entry("1", "signal", "job a"))).is, "kept");
    assert.equal((await operate.signal(signal, entry("2", "signal", "job a"))).is, "repeated");
    assert.equal((await operate.signal({ ...signal, job: "b" }, entry("3", "signal", "job b"))).is, "missing");
    assert.equal((await operate.signal({ ...signal, id: "t" })).is, "kept");
    assert.deepEqual(await audited(fixture), ["signal job a 1 by ann"]);
  });

  specify("changes of a schedule by hand are in the audit with how many jobs came of them", async (fixture) => {
    const { schedules } = fixture.store;
    if (schedules === undefined) return fixture.t.skip("this store has no schedules");
    const by = (id: string, action: AuditAction): AuditEntry => entry(id, action, "schedule s");
    const row = scheduleRow("s", fixture.clock.now() + HOUR_MS);
    assert.equal(await schedules.write(row, by("1", "schedule")), true);
    assert.equal(await schedules.write(row, by("2", "schedule")), false);
    const jobs = ["x", "y"].map((id, at) => ({ draft: draft({ id, kind: "mail" }), at, caughtUp: true }));
    const stale = await schedules.fire([{ row: { ...row, version: 7 }, jobs }], by("3", "run"));
    assert.deepEqual(stale, [{ is: "stale" }]);
    await schedules.fire([{ row: { ...row, version: 1 }, jobs }], by("4", "backfill"));
    // The next piece of the same backfill: of its jobs one is there.
    const more = ["y", "z"].map((id, at) => ({ draft: draft({ id, kind: "mail" }), at, caughtUp: true }));
    await schedules.fire([{ row: { ...row, version: 2 }, jobs: more }], by("4", "backfill"));
    await schedules.fire([{ row: { ...row, version: 3 }, jobs: [] }]);
    assert.equal(await schedules.remove("s", 1, by("5", "remove")), false);
    assert.equal(await schedules.remove("s", null, by("6", "remove")), true);
    assert.deepEqual(await audited(fixture), [
      "schedule schedule s 1 by ann",
      "backfill schedule s 3 by ann",
      "remove schedule s 1 by ann",
    ]);
  });

  batchSpecifier(specify)("a batch that a person opens and seals is in the audit, once each", async (on) => {
    const { fixture, batches } = on;
    const by = (id: string, action: AuditAction): AuditEntry => entry(id, action, "batch b");
    await batches.open(batchDraft("b", { key: "k" }), by("1", "submit"));
    await batches.open(batchDraft("c", { key: "k" }), by("2", "submit"));
    assert.equal(await batches.seal("b", 2, by("3", "seal")), "open");
    assert.equal(await batches.seal("b", 1, by("4", "seal")), "sealed");
    assert.equal(await batches.seal("b", 1, by("5", "seal")), "sealed");
    await batches.open(batchDraft("d"));
    await batches.seal("d", 1);
    assert.deepEqual(await audited(fixture), ["submit batch b 1 by ann", "seal batch b 1 by ann"]);
  });

  batchSpecifier(specify)("an abort and a retry of a batch are in the audit, once each", async (on) => {
    const { fixture, batches } = on;
    const by = (id: string, action: AuditAction): AuditEntry => entry(id, action, "batch b");
    await on.submit("b", [1]);
    await batches.abort("b", by("1", "abort"));
    await batches.abort("b", by("2", "abort"));
    assert.equal(await batches.abort("none", by("3", "abort")), "missing");
    const round = draft({ id: "round", kind: "mail" });
    assert.equal(await batches.reopen("b", 1, round, by("4", "retry")), false, "it has not ended");
    await on.tendAll();
    assert.deepEqual(await on.settle(), ["b"]);
    assert.equal(await batches.reopen("b", 1, round, by("5", "retry")), true);
    assert.equal(await batches.reopen("b", 1, round, by("6", "retry")), false);
    assert.deepEqual(await audited(fixture), ["abort batch b 1 by ann", "retry batch b 1 by ann"]);
  });

  specify(
    "the end of a collection by hand, and what is done with parked messages, are in the audit",
    async (fixture) => {
      const { collections } = fixture.store;
      if (collections === undefined) return fixture.t.skip("this store has no collections");
      const times = { idleMs: HOUR_MS, totalMs: HOUR_MS, keepMs: HOUR_MS };
      const series = [{ name: "files", expected: 1 }];
      await collections.open({ id: "c", kind: "mail", input: "{}", series, ...times, follow: [] });
      const step = { collection: "c", from: STEPS.abandoned, to: "abandoned", why: "a test", follow: [] } as const;
      assert.equal(await collections.step(step, entry("1", "abandon", "collection c")), true);
      assert.equal(await collections.step(step, entry("2", "abandon", "collection c")), false);
      const parked = { kind: "mail", collection: "c", series: "files", ordinal: 1, reason: "r", blob: null, bytes: 0 };
      await collections.park(["p", "q"].map((id) => ({ id, ...parked })));
      await collections.unpark(["p", "q", "none"], entry("3", "remove", "parked messages"));
      await collections.unpark(["p"], entry("4", "remove", "parked messages"));
      assert.deepEqual(await audited(fixture), ["abandon collection c 1 by ann", "remove parked messages 2 by ann"]);
    },
  );
}

function entry(id: string, action: AuditAction, target: string, actor = "ann"): AuditEntry {
  return { id, actor, action, target, reason: "a test" };
}

function change(
  fixture: Fixture,
  ids: readonly string[],
  what: HandChange,
  id = `entry-${ids.join("-")}-${what.do}`,
): Promise<readonly OperatorAnswer[]> {
  return fixture.store.operate.change(ids, what, entry(id, what.do, "jobs"));
}

/** What turns claim until they find nothing more to do. */
async function claimAll(worker: TestWorker): Promise<readonly string[]> {
  const claimed: string[] = [];
  for (let turns = 0; turns < 5; turns++) claimed.push(...idsOf(await worker.claim(roomFor(9))));
  return claimed;
}

function idsIn({ jobs }: { readonly jobs: readonly { readonly id: string }[] }): readonly string[] {
  return jobs.map(({ id }) => id);
}

function asleepView(job: ClaimedJob): Parameters<typeof wait>[0] {
  return { id: job.lease.jobId, state: "running", counters: job.counters };
}

function asSettled(job: ClaimedJob, ended: Settlement["change"]): Settlement {
  return { lease: job.lease, change: ended };
}

/** Waits for all these jobs. */
function waiting(job: ClaimedJob, ...jobs: readonly string[]): Settlement {
  return asSettled(job, wait(asleepView(job), { step: "run.wait#1", forMs: null, until: { jobs } }));
}
