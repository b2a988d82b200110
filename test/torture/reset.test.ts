// What a strike at a worker's connections demands: that no job is charged before the worker has been away for two leases, and that its
// process goes on. A proxy, a store and a worker that do as the test says stand for the real ones.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Proxy } from "../../proof/torture/faults/proxy.ts";
import { reset } from "../../proof/torture/faults/reset.ts";
import type { FaultContext } from "../../proof/torture/processes/fault-schedule.ts";
import type { Place } from "../../proof/torture/processes/fleet.ts";
import type { Engine, JobDetails, JobInfo } from "../../src/index.ts";
import { Chance } from "../../src/torture/killer.ts";

interface Script {
  /** How often the job of the worker was charged a crash when it is looked at. */
  readonly crashes: number;
  /** Incidents in the history of the job, with the worker of each. */
  readonly incidents?: readonly { readonly id: string; readonly worker: string; readonly resolution?: string }[];
  readonly wasHit?: boolean;
  /** A job of its own ended its process. */
  readonly endedByItsJob?: boolean;
  readonly ends?: boolean;
  /** The number of the worker of which no kernel can prove anything. */
  readonly elsewhere?: number;
  /** When it registered again; its work was taken at 1,000. */
  readonly backAt?: number;
}

/** What the strike said, and which door it refused. */
async function struck(script: Script): Promise<[number, string[]]> {
  const {
    crashes,
    incidents = [],
    wasHit = false,
    endedByItsJob = false,
    ends = false,
    elsewhere,
    backAt = 2_000,
  } = script;
  const place: Place = { role: "worker", number: 3, state: "live", pid: 100, workerId: "w1", sinceAt: 0, deaths: 0 };
  const said: string[] = [];
  let refused = 0;
  const proxy = {
    refuse: async (door: number, time: () => Promise<void>) => {
      refused = door;
      await time();
      if (ends) place.pid = 101;
    },
  } as unknown as Proxy;
  const job = { id: "job", kind: "torture.nap", worker: "w1", counters: { crashes, blamed: 0 } };
  const history = incidents.map(({ id }) => ({ incident: id }));
  const engine = {
    list: async () => ({ jobs: [job as JobInfo] }),
    get: async () => ({ ...job, history }) as unknown as JobDetails,
    incidents: async () => incidents.map((incident) => ({ resolution: null, detectedAt: 1_000, ...incident })),
    workers: async () => [
      { id: "w1", host: "h", pid: 1, startedAt: 0 },
      { id: "w1-again", host: "h", pid: 1, startedAt: backAt },
    ],
  } as unknown as Engine;
  const context = {
    engine,
    targets: () => [place],
    hold: () => {},
    enqueue: async () => "job",
    wasHit: () => wasHit,
    endedByItsJob: async () => endedByItsJob,
    violation: (sentence: string) => said.push(sentence),
  } as unknown as FaultContext;
  // An ended run waits for nothing.
  const run = new AbortController();
  const fault = reset(proxy, elsewhere);
  const strike = fault.strike(new Chance(1), run.signal, context);
  setTimeout(() => run.abort(), 100).unref();
  await strike;
  // Every second strike is at the worker elsewhere.
  if (elsewhere !== undefined) await fault.strike(new Chance(1), new AbortController().signal, context);
  return [refused, said];
}

test("a worker loses its connections by its own door, and nothing is reported if no job is charged", async () => {
  assert.deepEqual(await struck({ crashes: 0, incidents: [{ id: "i1", worker: "w1" }] }), [3, []]);
});

test("a job that is charged for the loss of a connection is a violation", async () => {
  const [, said] = await struck({ crashes: 1, incidents: [{ id: "i1", worker: "w1" }] });
  assert.match(
    said.join(),
    /^job job \(torture\.nap\) was charged 1 crash\(es\), .*; worker w1 had been without its connections for \d+ ms$/,
  );
});

test("a job may be charged for another worker, which did die", async () => {
  const incidents = [
    { id: "i1", worker: "w1" },
    { id: "i2", worker: "w2" },
  ];
  assert.deepEqual(await struck({ crashes: 1, incidents }), [3, []]);
});

test("a worker that ends for the loss of its connections is a violation, unless the rig ended it", async () => {
  const [, said] = await struck({ crashes: 0, ends: true });
  assert.deepEqual(said, ["worker w1 (pid 100) did not outlive the loss of its connections"]);
  assert.deepEqual(await struck({ crashes: 1, ends: true, wasHit: true }), [3, []]);
  assert.deepEqual(await struck({ crashes: 1, ends: true, endedByItsJob: true }), [3, []]);
});

test("contact with a worker elsewhere is lost, its work is taken, and its return resolves the loss", async () => {
  const incidents = [{ id: "i1", worker: "w1", resolution: "returned" }];
  assert.deepEqual(await struck({ crashes: 0, incidents, elsewhere: 3 }), [3, []]);
});

test("a worker elsewhere whose work is not taken, or whose return does not resolve its loss, is a violation", async () => {
  const [[, untaken], [, away]] = await Promise.all([
    struck({ crashes: 0, elsewhere: 3 }),
    struck({ crashes: 0, elsewhere: 3, incidents: [{ id: "i1", worker: "w1", resolution: "away" }] }),
  ]);
  assert.match(untaken.join(), /^worker w1 was elsewhere .* for \d+ ms, and its work was not taken$/);
  assert.match(away.join(), /^worker w1 was elsewhere .*, it came back, and the loss is away$/);
  const tooLate = [{ id: "i1", worker: "w1", resolution: "away" }];
  assert.deepEqual((await struck({ crashes: 0, elsewhere: 3, incidents: tooLate, backAt: 9_000 }))[1], []);
});
