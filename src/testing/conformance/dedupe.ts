// What the port promises about an enqueue whose dedupe key an unfinished job holds: an event that was accepted is seen by an attempt that
// began after it, the last input wins, and the key is free exactly when the job has ended.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import type { DedupePolicy } from "../../job/limits.ts";
import { wait } from "../../job/transitions.ts";
import {
  type Draft,
  draft,
  type Fixture,
  type TestWorker,
  idsOf,
  kind,
  NO_ROOM,
  roomFor,
  SETTLE,
  type Specify,
} from "./fixture.ts";

const RERUN: DedupePolicy = { then: "rerun" };
const REPLACE: DedupePolicy = { then: "replace" };

/** States in which a job has begun, and how it gets there. */
const BEGUN: Readonly<Record<string, (worker: TestWorker, job: ClaimedJob) => Promise<unknown>>> = {
  "while it runs": () => Promise.resolve(),
  "during its backoff": (worker, job) => worker.settle(SETTLE.fail(job, 1_000)),
  "while it sleeps": (worker, job) => {
    const view = { id: job.lease.jobId, state: "running", counters: job.counters } as const;
    return worker.settle({ lease: job.lease, change: wait(view, { step: "run.sleep#1", forMs: 1_000, until: null }) });
  },
  "after a release": (worker, job) => worker.settle(SETTLE.release(job)),
};

/** Ways in which such a job ends. */
const ENDS: Readonly<
  Record<string, (fixture: Fixture, worker: TestWorker, claim: () => Promise<ClaimedJob>) => Promise<unknown>>
> = {
  success: async (_, worker, claim) => worker.settle(SETTLE.succeed(await claim())),
  "a terminal error": async (_, worker, claim) => worker.settle(SETTLE.failForGood(await claim())),
  "a cancel": async (fixture, worker, claim) => {
    const job = await claim();
    await fixture.store.operate.cancel(job.lease.jobId, "operator");
    await worker.settle(SETTLE.endCancelled(job));
  },
  "the death of its worker": async (fixture, worker, claim) => {
    await fixture.declare(kind("mail", { onCrash: "fail" }));
    await claim();
    await fixture.recoverAll(worker);
  },
};

export function specifyDedupe(specify: Specify): void {
  for (const policy of [REPLACE, RERUN])
    specify(`${policy.then}: a job that has not begun gets the latest input and priority`, async (fixture) => {
      await fixture.enqueue(event("one", 1, policy));
      const [second] = await fixture.enqueue({ ...event("two", 2, policy), priority: 7 });
      assert.deepEqual(second, { id: "one", created: false, became: "replaced" });
      const worker = await fixture.worker("w");
      const [job, ...rest] = await worker.claim(5);
      assert.deepEqual([job?.lease.jobId, job?.input, rest.length], ["one", '{"n":2}', 0]);
      assert.equal((await fixture.job("one")).priority, 7);
    });

  specify("replace: a job that has begun is kept, and the event is answered with it", async (fixture) => {
    await fixture.enqueue(event("one", 1, REPLACE));
    const worker = await fixture.worker("w");
    const job = await worker.next();
    assert.deepEqual(await fixture.enqueue(event("two", 2, REPLACE)), [{ id: "one", created: false }]);
    await worker.settle(SETTLE.succeed(job));
    assert.deepEqual(await taken(worker), []);
  });

  for (const [when, begin] of Object.entries(BEGUN))
    for (const [how, end] of Object.entries(ENDS))
      specify(`known bug 24: rerun: an event ${when} runs again after the job has ended by ${how}`, async (fixture) => {
        await fixture.enqueue(event("one", 1, RERUN));
        const worker = await fixture.worker("w");
        const job = await worker.next();
        await begin(worker, job);
        for (const n of [2, 3])
          assert.deepEqual(await fixture.enqueue(event(`event-${n}`, n, RERUN)), [
            { id: "one", created: false, became: "rerun" },
          ]);
        await fixture.clock.advance(1_000);
        const claim = async (): Promise<ClaimedJob> => (when === "while it runs" ? job : worker.next());
        await end(fixture, worker, claim);
        const next = await fixture.worker("next");
        const again = await taken(next);
        assert.deepEqual(
          again.map(({ lease, input }) => [lease.jobId, input, lease.fence]),
          [["event-3", '{"n":3}', 1]],
        );
        await next.settle(SETTLE.succeed(again[0]!));
        assert.deepEqual(await taken(next), []);
        assert.deepEqual(await fixture.enqueue(event("four", 4, RERUN)), [{ id: "four", created: true }]);
      });

  specify(
    "rerun: a job that was enqueued after the end has the later input, and nothing is added to it",
    async (fixture) => {
      await fixture.enqueue(event("one", 1, RERUN));
      const worker = await fixture.worker("w");
      const job = await worker.next();
      await fixture.enqueue(event("two", 2, RERUN));
      await worker.turn([SETTLE.succeed(job)], NO_ROOM);
      await fixture.enqueue(event("three", 3, RERUN));
      const inputs: string[] = [];
      for (let round = 0; round < 3; round++)
        for (const one of await taken(worker)) {
          inputs.push(one.input);
          await worker.settle(SETTLE.succeed(one));
        }
      assert.equal(inputs.at(-1), '{"n":3}');
      assert.ok(inputs.length <= 2, inputs.join(" "));
    },
  );

  specify("rerun: the key belongs to an older job that was retried by hand: that one runs again", async (fixture) => {
    await fixture.enqueue(event("one", 1, RERUN));
    const worker = await fixture.worker("w");
    await worker.settle(SETTLE.succeed(await worker.next()));
    await fixture.enqueue(event("two", 2, RERUN));
    const second = await worker.next();
    await fixture.enqueue(event("three", 3, RERUN));
    await worker.turn([SETTLE.succeed(second)], NO_ROOM);
    await fixture.store.operate.retry("one", "operator");
    const inputs: string[] = [];
    for (let round = 0; round < 4; round++)
      for (const one of await taken(worker)) {
        inputs.push(one.input);
        await worker.settle(SETTLE.succeed(one));
      }
    assert.ok(inputs.includes('{"n":3}'), inputs.join(" "));
  });

  specify(
    "known bug 38: debounce: no older event takes the place of a newer one, whichever connections they come from",
    async (fixture) => {
      const policy: DedupePolicy = { then: "rerun", debounce: { waitMs: 1_000, maxMs: 60_000 } };
      const worker = await fixture.worker("w");
      const [one, two] = [await fixture.connect(), await fixture.connect()];
      let n = 0;
      // Events that come at once are in any order among each other; what comes after they resolved is newer than all of them.
      const burst = () =>
        Promise.all([one, two, one, two].map((store) => store.enqueue([draft(event(`event-${++n}`, n, policy))])));
      for (let round = 0; round < 5; round++) {
        await burst();
        await (round % 2 === 0 ? one : two).enqueue([draft(event(`last-${round}`, 1_000 + round, policy))]);
        await fixture.clock.advance(500);
        assert.deepEqual(await taken(worker), []);
      }
      await fixture.clock.advance(500);
      const [job] = await taken(worker);
      assert.equal(job?.input, '{"n":1004}');
      await burst();
      await two.enqueue([draft(event("during", 2_000, policy))]);
      await worker.settle(SETTLE.succeed(job));
      await taken(worker);
      await fixture.clock.advance(1_000);
      assert.deepEqual(
        (await taken(worker)).map(({ input }) => input),
        ['{"n":2000}'],
      );
    },
  );

  specify(
    "debounce: `max` counts from the first event after the beginning, also when the rerun is put off",
    async (fixture) => {
      const policy: DedupePolicy = { then: "rerun", debounce: { waitMs: 1_000, maxMs: 2_500 } };
      const worker = await fixture.worker("w");
      await fixture.enqueue(event("one", 1, policy));
      await fixture.clock.advance(1_000);
      const [job] = await taken(worker);
      await fixture.enqueue(event("two", 2, policy));
      await worker.settle(SETTLE.succeed(job!));
      assert.deepEqual(await taken(worker), []);
      for (const n of [3, 4, 5]) {
        await fixture.clock.advance(800);
        assert.deepEqual(await taken(worker), []);
        await fixture.enqueue(event(`event-${n}`, n, policy));
      }
      await fixture.clock.advance(100);
      assert.deepEqual(
        (await taken(worker)).map(({ input }) => input),
        ['{"n":5}'],
      );
    },
  );

  specify(
    "debounce: it runs when it was quiet for long enough, with the last input, and `max` after the first",
    async (fixture) => {
      const policy: DedupePolicy = { then: "rerun", debounce: { waitMs: 1_000, maxMs: 2_500 } };
      const worker = await fixture.worker("w");
      await fixture.enqueue(event("one", 1, policy));
      for (const n of [2, 3, 4]) {
        await fixture.clock.advance(800);
        assert.deepEqual(await taken(worker), []);
        await fixture.enqueue(event(`event-${n}`, n, policy));
      }
      const shown = await fixture.job("one");
      assert.equal(shown.latestAt, shown.createdAt + 2_500, "how far it can be put off is shown");
      await fixture.clock.advance(99);
      assert.deepEqual(await taken(worker), []);
      await fixture.clock.advance(1);
      const [job] = await taken(worker);
      assert.deepEqual([job?.lease.jobId, job?.input], ["one", '{"n":4}']);
      await fixture.enqueue(event("during", 5, policy));
      await worker.settle(SETTLE.succeed(job!));
      assert.deepEqual(await taken(worker), []);
      await fixture.clock.advance(1_000);
      assert.deepEqual(
        (await taken(worker)).map(({ input }) => input),
        ['{"n":5}'],
      );
    },
  );
}

function event(id: string, n: number, dedupe: DedupePolicy): Draft {
  return { id, input: JSON.stringify({ n }), dedupeKey: "key", dedupe };
}

async function taken(worker: TestWorker): Promise<readonly ClaimedJob[]> {
  for (let turns = 0; turns < 20; turns++) {
    const answer = await worker.turn([], roomFor(5));
    if (answer.claimed.length > 0 || answer.nextDueInMs !== 0) return answer.claimed;
  }
  assert.fail(`worker ${worker.id} always has more to do; ${idsOf([]).length} claimed`);
}
