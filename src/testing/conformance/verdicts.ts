// What the port promises about each job of a dead worker: the decision is written whole, one that fails stops nobody, and what a
// kind or an operator said before the death counts.
import assert from "node:assert/strict";
import { decideCrash } from "../../recovery/recover.ts";
import { kind, names, type Fixture, type Specify } from "./fixture.ts";

export function specifyVerdicts(specify: Specify): void {
  specify(
    "a job whose decision throws is listed with its error, stays as it is, and stops nobody else",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      await worker.claim(9);
      const { jobs, incident } = await fixture.bury(worker, { decide: throwingFor("b") });
      assert.deepEqual(
        jobs.map((job) => [job.jobId, job.decision, job.success, job.error]),
        [
          ["a", "retry", true, null],
          ["b", "none", false, "no decision about b"],
          ["c", "retry", true, null],
        ],
      );
      assert.deepEqual(await fixture.states("a", "b", "c"), ["queued", "running", "queued"]);
      assert.equal((await fixture.job("b")).counters.crashes, 0);
      const stored = await fixture.store.inspect.incident(incident!);
      assert.deepEqual(
        stored?.jobs.map((job) => job.success),
        [true, false, true],
      );
    },
  );

  specify("known bug 6: a page full of jobs that can't be recovered does not hide the others", async (fixture) => {
    await fixture.enqueue(...names("bad", 4), ...names("good", 4));
    const worker = await fixture.worker("w");
    await worker.claim(9);
    const { jobs } = await fixture.bury(worker, { limit: 2, decide: throwingFor("bad") });
    assert.equal(jobs.length, 8);
    assert.deepEqual(await fixture.states(...names("good", 4)), Array(4).fill("queued"));
  });

  specify(
    "known bug 20: a job whose own recovery failed can be recovered later: it is not left with the dead for ever",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      await worker.claim(9);
      await fixture.bury(worker, { decide: throwingFor("b") });
      const { jobs } = await fixture.bury(worker);
      assert.deepEqual(
        jobs.map((job) => [job.jobId, job.success]),
        [["b", true]],
      );
      assert.deepEqual(await fixture.states("a", "b"), ["queued", "queued"]);
    },
  );

  specify("known bug 22: a cancel that was asked for before the death is honoured by recovery", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.next();
    assert.deepEqual(await fixture.store.operate.cancel("a", "operator"), { is: "requested" });
    const { jobs } = await fixture.bury(worker);
    assert.deepEqual(
      jobs.map((job) => job.decision),
      ["cancel"],
    );
    const job = await fixture.job("a");
    assert.deepEqual([job.state, job.lastOutcome, job.counters.crashes], ["cancelled", "cancelled", 0]);
    assert.deepEqual(await (await fixture.worker("next")).claim(9), []);
  });

  specify("FR-013 FR-014 a kind's own answer to a crash is kept: uncounted, or the end", async (fixture) => {
    await fixture.declare(kind("mail", { onCrash: "requeue" }), kind("sms", { onCrash: "fail" }));
    await fixture.enqueue("a", { id: "b", kind: "sms" });
    const worker = await fixture.worker("w");
    await worker.claim(9);
    const { jobs } = await fixture.bury(worker);
    assert.deepEqual(
      jobs.map((job) => job.decision),
      ["requeue", "fail"],
    );
    const [a, b] = [await fixture.job("a"), await fixture.job("b")];
    assert.deepEqual([a.state, a.counters.crashes, a.history.length], ["queued", 0, 1]);
    assert.deepEqual([b.state, b.counters.crashes, b.error?.name], ["dead", 1, "WorkerDied"]);
  });
}

/** Decides as recovery does, but throws for jobs whose id begins so. */
function throwingFor(prefix: string): Awaited<ReturnType<Fixture["recovery"]>>["decide"] {
  return (job, condemned) => {
    if (job.id.startsWith(prefix)) throw new Error(`no decision about ${job.id}`);
    return decideCrash(job, condemned);
  };
}
