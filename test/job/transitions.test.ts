// Holds every change of a job's state to its documented next state, counters, reason and limits.
import assert from "node:assert/strict";
import * as transitions from "../../src/job/transitions.ts";
import { test } from "node:test";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";
import { JOB_STATES, type JobState, NO_COUNTERS } from "../../src/job/job.ts";
import { BY_HAND, type Change, type ChangeName, CHANGES, type JobView } from "../../src/job/transitions.ts";
import { aKind, aView, counted } from "../support/samples.ts";

const boom = { name: "Error", message: "boom" };
const ALONE = { suspectsAtDeath: 1 };
const TOGETHER = { suspectsAtDeath: 4 };

const HOUR_OF_SLEEP = { step: "run.sleep#1", forMs: 3_600_000, until: null };

/** Each change with its first allowed use, written here by hand: from which states, and where it leads. */
const table: Readonly<
  Record<ChangeName, { from: readonly JobState[]; to: JobState | "same"; make: (job: transitions.JobView) => Change }>
> = {
  claim: { from: ["queued"], to: "running", make: (job) => transitions.claim(job) },
  succeed: { from: ["running"], to: "succeeded", make: (job) => transitions.succeed(job, "1") },
  fail: { from: ["running"], to: "queued", make: (job) => transitions.fail(job, aKind(), boom, 5, false) },
  timeOut: { from: ["running"], to: "queued", make: (job) => transitions.timeOut(job, aKind(), 5) },
  crash: { from: ["running"], to: "queued", make: (job) => transitions.crash(job, aKind(), TOGETHER).change },
  lose: { from: ["running"], to: "queued", make: (job) => transitions.lose(job, aKind(), TOGETHER).change },
  countLoss: {
    from: ["queued", "running"],
    to: "same",
    make: (job) => transitions.countLoss(job, aKind(), false, "died").change,
  },
  forgetLoss: {
    from: ["queued", "running"],
    to: "same",
    make: (job) => transitions.forgetLoss(job, aKind(), "it returned").change,
  },
  release: { from: ["running"], to: "queued", make: (job) => transitions.release(job, "shut down") },
  wait: { from: ["running"], to: "queued", make: (job) => transitions.wait(job, HOUR_OF_SLEEP) },
  endCancelled: { from: ["running"], to: "cancelled", make: (job) => transitions.endCancelled(job, "asked") },
  refuse: { from: ["running"], to: "dead", make: (job) => transitions.refuse(job, boom) },
  quarantine: { from: ["running"], to: "quarantined", make: (job) => transitions.quarantine(job, ["input"]) },
  cancel: { from: ["queued"], to: "cancelled", make: (job) => transitions.cancel(job) },
  expire: { from: ["queued"], to: "cancelled", make: (job) => transitions.expire(job) },
  remove: {
    from: ["queued", "succeeded", "dead", "cancelled", "quarantined"],
    to: "cancelled",
    make: (job) => transitions.remove(job),
  },
  promote: { from: ["queued"], to: "queued", make: (job) => transitions.promote(job) },
  retry: {
    from: ["succeeded", "dead", "cancelled", "quarantined"],
    to: "queued",
    make: (job) => transitions.retry(job, 0),
  },
};

test("the changes and the states from which they start are those written down here", () => {
  const written = Object.fromEntries(Object.entries(table).map(([name, { from }]) => [name, from]));
  assert.deepEqual(CHANGES, written);
});

test("what a person may ask is decided for every state from which it may start, whatever the counters are", () => {
  const view = (state: JobState): JobView =>
    aView({ state, counters: { ...NO_COUNTERS, errors: 3, crashes: 2, blamed: 1 } });
  for (const name of ["cancel", "retry", "promote", "remove"] as const) {
    const decided = Object.fromEntries(CHANGES[name].map((state) => [state, table[name].make(view(state))]));
    assert.deepEqual(BY_HAND[name].changes, decided);
  }
  assert.deepEqual([typeof BY_HAND.cancel.request, BY_HAND.retry.request], ["string", null]);
});

for (const name of Object.keys(CHANGES) as ChangeName[]) {
  for (const state of JOB_STATES) {
    const { from, to, make } = table[name];
    if (from.includes(state)) {
      test(`${name} takes a ${state} job to ${to === "same" ? state : to}`, () => {
        const change = make(aView({ state }));
        assert.equal(change.name, name);
        assert.equal(change.to, to === "same" ? state : to);
      });
    } else {
      test(`${name} is refused for a ${state} job`, () => {
        assert.throws(
          () => make(aView({ state })),
          (thrown: unknown) => {
            assert.ok(thrown instanceof OutliveError);
            assert.equal(thrown.code, ErrorCode.wrongState);
            assert.deepEqual(thrown.data, { jobId: "job-1", state, change: name });
            assert.match(
              thrown.message,
              new RegExp(`^Job job-1 is ${state}; "${name}" is possible only from ${from[0]}`),
            );
            return true;
          },
        );
      });
    }
  }
}

test("no change reaches into the job that it looks at", () => {
  for (const { from, make } of Object.values(table)) {
    const job = aView({ state: from[0]!, counters: Object.freeze(counted({ errors: 1 })) });
    make(Object.freeze(job));
    assert.deepEqual(job.counters, counted({ errors: 1 }));
  }
});

test("a claim counts nothing and writes no history", () => {
  const counters = counted({ errors: 1, crashes: 2, blamed: 1, timeouts: 1, interruptions: 9 });
  const change = transitions.claim(aView({ state: "queued", counters }));
  assert.deepEqual(change, {
    name: "claim",
    to: "running",
    add: {},
    outcome: null,
    delayMs: 0,
    result: null,
    error: null,
    reason: null,
  });
});

test("a success keeps the result and the counters and writes no history", () => {
  const counters = counted({ errors: 2 });
  const change = transitions.succeed(aView({ counters }), '{"n":1}');
  assert.deepEqual(change, {
    name: "succeed",
    to: "succeeded",
    add: {},
    outcome: "succeeded",
    delayMs: 0,
    result: '{"n":1}',
    error: null,
    reason: null,
  });
  assert.equal(transitions.succeed(aView(), null).result, null);
});

test("FR-069 a corrupt job is quarantined with what did not match, a code and the next step, and counts nothing", () => {
  const counters = counted({ errors: 1, crashes: 1 });
  const change = transitions.quarantine(aView({ counters }), ["input", "step render"]);
  assert.deepEqual([change.to, change.outcome, change.add], ["quarantined", "corrupt", {}]);
  assert.equal(change.reason, "corrupt: the stored input and step render of job job-1 do not match their checksums");
  assert.deepEqual([change.error?.name, change.error?.code], ["Corrupt", ErrorCode.corrupt]);
  assert.match(change.error!.message, /^the stored input and step render of job job-1 .* Enqueue it again/);
  assert.match(
    transitions.quarantine(aView(), ["step a"]).reason!,
    /^corrupt: the stored step a .* does not match its/,
  );
});

test("a wait counts nothing and keeps what is waited for; a cancel that was requested ends the job instead", () => {
  const change = transitions.wait(aView({ counters: counted({ errors: 2 }) }), HOUR_OF_SLEEP);
  assert.deepEqual([change.add, change.resets, change.outcome], [{}, undefined, "waiting"]);
  assert.deepEqual(change.wait, HOUR_OF_SLEEP);
  assert.equal(change.reason, "sleeps for 3600000 ms");
  const { to, wait, add } = change.ifCancelled!;
  assert.deepEqual([to, wait, add], ["cancelled", undefined, {}]);
});

test("a failure counts one error, waits for its delay and says which error of how many it was", () => {
  const change = transitions.fail(aView({ counters: counted({ crashes: 1 }) }), aKind(), boom, 1_500, false);
  assert.equal(change.to, "queued");
  assert.deepEqual(change.add, { errors: 1 });
  assert.equal(change.outcome, "failed");
  assert.equal(change.delayMs, 1_500);
  assert.deepEqual(change.error, boom);
  assert.equal(change.reason, "error 1 of 3: boom");
});

test("the last allowed error kills the job, without a delay", () => {
  const before = transitions.fail(aView({ counters: counted({ errors: 1 }) }), aKind(), boom, 10, false);
  assert.equal(before.to, "queued");
  const last = transitions.fail(aView({ counters: counted({ errors: 2 }) }), aKind(), boom, 10, false);
  assert.equal(last.to, "dead");
  assert.deepEqual(last.add, { errors: 1 });
  assert.equal(last.outcome, "failed");
  assert.equal(last.delayMs, 0);
  assert.deepEqual(last.error, boom);
  assert.equal(last.reason, "error 3 of 3, no more are allowed: boom");
});

test("a limit of one allows no second failure, and no second crash", () => {
  const kind = aKind({ limits: { errors: 1, timeouts: 1, crashes: 1 } });
  assert.equal(transitions.fail(aView(), kind, boom, 0, false).to, "dead");
  assert.equal(transitions.timeOut(aView(), kind, 0).to, "dead");
  assert.equal(transitions.crash(aView(), kind, { suspectsAtDeath: 0 }).change.to, "queued");
  const suspect = aView({ counters: counted({ crashes: 1 }) });
  assert.equal(transitions.crash(suspect, kind, ALONE).change.to, "quarantined");
});

test("a limit that was lowered below what a job has used kills it at the next error", () => {
  const change = transitions.fail(aView({ counters: counted({ errors: 8 }) }), aKind(), boom, 0, false);
  assert.equal(change.to, "dead");
  assert.deepEqual(change.add, { errors: 1 });
});

test("a terminal error kills the job at once and still counts", () => {
  const change = transitions.fail(aView(), aKind(), boom, 10, true);
  assert.equal(change.to, "dead");
  assert.deepEqual(change.add, { errors: 1 });
  assert.equal(change.reason, "terminal error: boom");
});

test("a timeout counts only as a timeout", () => {
  const change = transitions.timeOut(aView(), aKind(), 250);
  assert.equal(change.to, "queued");
  assert.deepEqual(change.add, { timeouts: 1 });
  assert.equal(change.outcome, "timed-out");
  assert.equal(change.delayMs, 250);
  assert.equal(change.reason, "timeout 1 of 2");
  assert.deepEqual(change.error, { name: "Timeout", message: "the attempt passed its deadline (timeout 1 of 2)" });
});

test("the last allowed timeout kills the job", () => {
  const change = transitions.timeOut(aView({ counters: counted({ timeouts: 1 }) }), aKind(), 250);
  assert.equal(change.to, "dead");
  assert.equal(change.delayMs, 0);
  assert.equal(change.reason, "timeout 2 of 2, no more are allowed");
});

test("FR-014 FR-015 UT-002 a first crash next to others queues the job again at once and counts, without blame", () => {
  const { change, decision } = transitions.crash(aView(), aKind(), TOGETHER);
  assert.equal(decision, "retry");
  assert.equal(change.to, "queued");
  assert.equal(change.delayMs, 0);
  assert.equal(change.outcome, "crashed");
  assert.deepEqual(change.add, { crashes: 1 });
  assert.deepEqual(change.error, { name: "WorkerDied", message: "the worker died during the attempt (crash 1)" });
  assert.equal(change.together, 0);
  assert.equal(change.reason, "its worker died (crash 1, 0 of 3 alone)");
});

test("from its second crash on, each halves the number of suspects that a job may run with, down to itself", () => {
  const { change } = transitions.crash(aView({ counters: counted({ crashes: 1 }) }), aKind(), TOGETHER);
  assert.equal(change.together, 2);
  assert.equal(change.reason, "its worker died (crash 2, 0 of 3 alone); it will run with at most 1 other suspect(s)");
  const last = transitions.crash(aView({ counters: counted({ crashes: 1 }) }), aKind(), ALONE).change;
  assert.equal(last.together, 1);
  assert.equal(last.reason, "its worker died (crash 2, 1 of 3 alone); it will run as the only suspect");
});

test("crashes next to others never quarantine a job, however many", () => {
  const { change, decision } = transitions.crash(
    aView({ counters: counted({ crashes: 500, blamed: 2 }) }),
    aKind(),
    TOGETHER,
  );
  assert.equal(decision, "retry");
  assert.deepEqual(change.add, { crashes: 1 });
});

test("FR-016 FR-017 UT-002 a job that has killed as many workers alone as it may is quarantined", () => {
  const { change, decision } = transitions.crash(
    aView({ counters: counted({ crashes: 4, blamed: 2 }) }),
    aKind(),
    ALONE,
  );
  assert.equal(decision, "quarantine");
  assert.equal(change.to, "quarantined");
  assert.deepEqual(change.add, { crashes: 1, blamed: 1 });
  assert.equal(change.reason, "its worker died 3 times while it ran alone (limit 3)");
});

test("FR-013 FR-014 UT-002 onCrash requeue queues the job again and counts nothing, also alone and beyond every limit", () => {
  const counters = counted({ crashes: 9, blamed: 9 });
  const { change, decision } = transitions.crash(aView({ counters }), aKind({ onCrash: "requeue" }), ALONE);
  assert.equal(decision, "requeue");
  assert.equal(change.to, "queued");
  assert.deepEqual(change.add, {});
  assert.equal(change.outcome, "crashed");
  assert.equal(change.error, null);
  assert.equal(change.reason, "its worker died; queued again, not counted");
});

test("FR-013 FR-014 UT-002 onCrash fail ends the job at its first crash and counts it", () => {
  const { change, decision } = transitions.crash(aView(), aKind({ onCrash: "fail" }), TOGETHER);
  assert.equal(decision, "fail");
  assert.equal(change.to, "dead");
  assert.deepEqual(change.add, { crashes: 1 });
  assert.equal(change.reason, "its worker died, and its kind says that a crash ends the job");
});

test("a job that had used up its timeouts or errors before its worker died is dead, and nothing more is counted", () => {
  for (const [counters, spent] of [
    [counted({ timeouts: 2, crashes: 1 }), "timeout 2 of 2"],
    [counted({ errors: 4 }), "error 4 of 3"],
  ] as const)
    for (const inFlight of [ALONE, TOGETHER]) {
      const { change, decision } = transitions.crash(aView({ counters }), aKind(), inFlight);
      assert.equal(decision, "fail");
      assert.equal(change.to, "dead");
      assert.deepEqual(change.add, {});
      assert.equal(change.outcome, "crashed");
      assert.equal(change.reason, `its worker died; ${spent}, no more are allowed`);
    }
});

test("a job that had used up its timeouts or errors before contact with its worker was lost is dead, and nothing is counted", () => {
  const counters = counted({ errors: 3 });
  const { change, decision } = transitions.lose(aView({ counters }), aKind(), TOGETHER);
  assert.deepEqual([decision, change.to, change.outcome], ["fail", "dead", "lost"]);
  assert.deepEqual(change.add, {});
  assert.equal(change.reason, "contact with its worker was lost; error 3 of 3, no more are allowed");
});

test("a job that kills its workers is quarantined, also if it had used up another limit", () => {
  const counters = counted({ timeouts: 9, crashes: 2, blamed: 2 });
  assert.equal(transitions.crash(aView({ counters }), aKind(), ALONE).decision, "quarantine");
});

test("a cancel that was requested before the death is honoured, whatever the kind says about crashes", () => {
  for (const onCrash of ["retry", "requeue", "fail"] as const) {
    const counters = counted({ crashes: 2, blamed: 2 });
    const { ifCancelled } = transitions.crash(aView({ counters }), aKind({ onCrash }), ALONE).change;
    assert.deepEqual([ifCancelled?.name, ifCancelled?.to, ifCancelled?.outcome], ["crash", "cancelled", "cancelled"]);
    assert.deepEqual(ifCancelled?.add, {});
    assert.match(ifCancelled.reason!, /^cancelled; its worker died/);
  }
});

test("a release costs nothing but an interruption", () => {
  const change = transitions.release(aView({ counters: counted({ errors: 1 }) }), "its worker shut down");
  assert.equal(change.to, "queued");
  assert.equal(change.delayMs, 0);
  assert.deepEqual(change.add, { interruptions: 1 });
  assert.equal(change.outcome, "released");
  assert.equal(change.reason, "its worker shut down");
});

test("interruptions have no limit", () => {
  const change = transitions.release(aView({ counters: counted({ interruptions: 1_000_000 }) }), "again");
  assert.equal(change.to, "queued");
});

test("a refused input kills the job without counting an error", () => {
  const change = transitions.refuse(aView(), boom);
  assert.equal(change.to, "dead");
  assert.deepEqual(change.add, {});
  assert.equal(change.outcome, "rejected");
  assert.equal(change.reason, "its stored input was refused: boom");
});

test("a cancel before the first attempt and one during it say so", () => {
  assert.equal(transitions.cancel(aView({ state: "queued" })).reason, "cancelled before it ran");
  assert.equal(transitions.endCancelled(aView(), "cancelled while it ran").reason, "cancelled while it ran");
});

test("a retry by hand starts all counters again and names the state it came from", () => {
  const counters = counted({ errors: 3, crashes: 4, blamed: 3, timeouts: 2, interruptions: 1 });
  const change = transitions.retry(aView({ state: "quarantined", counters }), 50);
  assert.deepEqual(transitions.afterChange(counters, change), counted());
  assert.equal(change.delayMs, 50);
  assert.equal(change.outcome, null);
  assert.equal(change.reason, "retried by hand from quarantined");
});

test("FR-019 FR-022 every change but claim and succeed gives the history a reason", () => {
  for (const [name, { from, make }] of Object.entries(table)) {
    const { reason } = make(aView({ state: from[0]! }));
    if (name === "claim" || name === "succeed") assert.equal(reason, null);
    else assert.ok(reason, `${name} has no reason`);
  }
});

test("a cancel that was requested keeps an ended attempt from being queued again, and leaves every other end alone", () => {
  const failed = transitions.fail(aView(), aKind(), boom, 1_500, false);
  const { ifCancelled } = failed;
  assert.deepEqual([ifCancelled?.name, ifCancelled?.to, ifCancelled?.delayMs], ["fail", "cancelled", 0]);
  assert.deepEqual(ifCancelled?.add, failed.add);
  assert.equal(ifCancelled?.reason, "error 1 of 3: boom; its cancel had been asked for");
  for (const queued of [transitions.timeOut(aView(), aKind(), 5), transitions.release(aView(), "shut down")])
    assert.equal(queued.ifCancelled?.to, "cancelled");
  const others = [
    transitions.succeed(aView(), null),
    transitions.fail(aView(), aKind(), boom, 0, true),
    transitions.endCancelled(aView(), "asked"),
  ];
  for (const other of others) assert.equal(other.ifCancelled, undefined);
});

test("counters are added to, and never fall below zero", () => {
  const { change } = transitions.countLoss(aView({ counters: counted({ losses: 1 }) }), aKind(), true, "died");
  assert.deepEqual(change.add, { crashes: 1, blamed: 1, losses: -1 });
  assert.deepEqual(transitions.afterChange(counted({ losses: 1 }), change), counted({ crashes: 1, blamed: 1 }));
  assert.deepEqual(transitions.afterChange(counted(), change), counted({ crashes: 1, blamed: 1 }));
});
