// C1: where the kernel's boot id can't be read (systemd's ProcSubset=pid, and every system but Linux), the boot id was made from
// the start of the process, so two workers took each other for another machine.
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import type { WorkerRow } from "../../src/stores/liveness.ts";
import { slow } from "../support/jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";
import { inNamespaces, nodeWithoutProcSys } from "./namespaces.ts";
import { Supervisors } from "./supervised.ts";
import { attemptOf } from "../support/former-names.ts";

const anotherMinute = fileURLToPath(new URL("./another-minute.ts", import.meta.url));

test(
  "C1: workers without /proc/sys that started in different minutes work on one file, and a death is found by its lock",
  inNamespaces,
  async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    const { id } = await engine.enqueue(slow, { ms: 60_000 });
    const surroundings = {
      execPath: nodeWithoutProcSys(place.folder),
      execArgv: ["--import", anotherMinute],
      env: { OUTLIVE_TEST_STARTS: join(place.folder, "starts") },
    };
    const victim = place.child(surroundings);
    await victim.untilFact("started", { id });
    const heir = place.child(surroundings);
    await heir.untilFact("working");
    // Long enough for each to have seen the other's heartbeat move.
    await untilTrue(
      () => engine.workers(),
      (workers) => workers.length < 2 || workers.every(({ beats, state }) => beats > 10 && state === "live"),
      "both workers have sent ten heartbeats",
    );
    const present = await engine.workers();
    assert.deepEqual(
      present.map(({ state }) => state),
      ["live", "live"],
    );
    assert.equal(new Set(present.map(({ bootId }) => bootId)).size, 1, "both name the same boot");
    victim.kill();
    await heir.untilFact("started", { id, attempt: 2 });
    assert.equal((await engine.incidents())[0]?.how, "gone");
  },
);

test("C1: a supervised fleet without /proc/sys survives a killed process without a stop", inNamespaces, async (t) => {
  const supervisors = new Supervisors(t);
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = supervisors.work({
    store: place.url,
    folder: place.folder,
    node: nodeWithoutProcSys(place.folder),
    args: ["--processes", "2", "--import", anotherMinute],
    env: { OUTLIVE_TEST_STARTS: join(place.folder, "starts") },
  });
  const stops = (): string[] => supervised.said(/Two machines use one SQLite file/);
  const live = async (): Promise<WorkerRow[]> => (await engine.workers()).filter(({ state }) => state === "live");
  const settled = async (): Promise<boolean> => {
    const workers = await live();
    return stops().length > 0 || (workers.length === 2 && workers.every(({ beats }) => beats > 5));
  };
  await untilTrue(settled, Boolean, "two workers live side by side");
  assert.deepEqual(stops(), []);
  const owner = (await engine.get(id))?.worker;
  process.kill((await live()).find((row) => row.id === owner)!.pid, "SIGKILL");
  await untilTrue(
    () => engine.get(id),
    (job) => stops().length > 0 || (job?.state === "running" && attemptOf(job) > 1),
    "the job runs again",
  );
  await untilTrue(settled, Boolean, "two workers live side by side again");
  assert.deepEqual(stops(), []);
});

// Neither can know that the other is on its machine, so the lease decides between them.
test("U: a worker that can read the boot id and one that can't work on one file", inNamespaces, async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  place.child();
  place.child({ execPath: nodeWithoutProcSys(place.folder) });
  const seen = await untilTrue(
    () => engine.workers({ which: "all" }),
    (workers) =>
      workers.some(({ state }) => state === "stopped") || workers.filter(({ beats }) => beats > 10).length === 2,
    "both workers have sent ten heartbeats",
  );
  assert.deepEqual(
    seen.map(({ state }) => state),
    ["live", "live"],
  );
});
