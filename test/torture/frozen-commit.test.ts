// What a strike at a commit demands: that the other jobs of the frozen worker are taken while it stands still. A store and a worker that do
// as the test says stand for the real ones.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { frozenCommit } from "../../proof/torture/faults/frozen-commit.ts";
import { type FaultContext, NotDone } from "../../proof/torture/processes/fault-schedule.ts";
import type { Place } from "../../proof/torture/processes/fleet.ts";
import type { Engine, JobInfo } from "../../src/index.ts";
import { Chance } from "../../src/torture/killer.ts";

/** No process has this number, so it stands still. */
const NOBODY = 2 ** 30;
const TAKEN_WITHIN_MS = 500;

/** What the strike said and did, when the worker holds these jobs, and each look at the store shows the next of them. */
async function struck(...held: readonly (readonly string[])[]): Promise<{ said: string[]; did: string[] }> {
  const place: Place = { role: "worker", number: 2, state: "live", pid: NOBODY, workerId: "w1", sinceAt: 0, deaths: 0 };
  const [said, did]: string[][] = [[], []];
  let looks = 0;
  const list = async (): Promise<{ jobs: JobInfo[] }> => {
    const ids = held[Math.min(looks++, held.length - 1)]!;
    return { jobs: ids.map((id) => ({ id, worker: "w1" }) as JobInfo) };
  };
  const context = {
    engine: { list } as unknown as Engine,
    enqueue: async () => "job",
    nextCommit: async (fits: (one: Place) => boolean) => (fits(place) ? { place, job: "commit" } : null),
    hold: () => did!.push("hold"),
    freeze: () => {
      did!.push("freeze");
      place.state = "frozen";
    },
    wake: () => {
      did!.push("wake");
      place.state = "live";
      place.workerId = "w2";
    },
    violation: (sentence: string) => said!.push(sentence),
  } as unknown as FaultContext;
  const fault = frozenCommit(({ number }) => number === 2, TAKEN_WITHIN_MS);
  await fault.strike(new Chance(1), new AbortController().signal, context);
  return { said: said!, did: did! };
}

describe("a worker that is frozen inside a commit", { concurrency: true }, () => {
  it("may keep the job of that commit, but no other", async () => {
    const { said, did } = await struck(["commit", "other"], ["commit", "other"], ["commit"]);
    assert.deepEqual(said, []);
    assert.deepEqual(did, ["hold", "freeze", "wake"]);
  });

  it("is a violation if its other jobs are not taken, and is woken all the same", async () => {
    const { said, did } = await struck(["commit", "other"]);
    assert.match(
      said.join(),
      /^worker w1 stood still inside the commit of job commit, and its other jobs \(other\) were not taken/,
    );
    assert.deepEqual(did, ["hold", "freeze", "wake"]);
  });

  it("shows nothing if it held nothing else", async () => {
    await assert.rejects(struck(["commit"]), NotDone);
  });
});
