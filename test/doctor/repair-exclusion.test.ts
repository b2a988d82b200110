// A repair by hand has the file to itself from its first check to its last: a start-up waits, a process that only attaches is refused,
// and the repair itself is refused while a worker lives. The repair is a separate process, and it is killed.
import assert from "node:assert/strict";
import { type ChildProcessByStdio, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { connect, ErrorCode } from "../../src/client.ts";
import { attach, repairStore } from "../../src/engine/open.ts";
import { says } from "../engine/engines.ts";
import { damageJobs, disagree, furnish } from "../support/damaged-file.ts";
import { Place } from "../support/processes.ts";

const SCRIPT = fileURLToPath(new URL("../support/repair-process.ts", import.meta.url));

interface Repairing {
  readonly child: ChildProcessByStdio<Writable, Readable, null>;
  /** Resolves when it has said so. */
  readonly said: (text: string) => Promise<void>;
}

function repairing(t: TestContext, url: string): Repairing {
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", SCRIPT, url], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  t.after(() => void child.kill("SIGKILL"));
  let all = "";
  const heard = new Set<() => void>();
  child.stdout.on("data", (data: Buffer) => {
    all += data.toString();
    for (const hear of heard) hear();
  });
  const said = (text: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const hear = (): void => void (all.includes(text) && resolve());
      heard.add(hear);
      child.once("close", () => reject(new Error(`it ended without "${text}": ${all}`)));
      hear();
    });
  return { child, said };
}

async function inTheMiddle(t: TestContext): Promise<Repairing & { place: Place }> {
  const place = new Place(t);
  await furnish(place, 200);
  disagree(place.path);
  const repair = repairing(t, place.url);
  await repair.said("reindex");
  return { ...repair, place };
}

test("FR-058 in the middle of a repair no process can attach to the file, and a start-up waits for its end", async (t) => {
  const { place, child, said } = await inTheMiddle(t);
  await assert.rejects(attach(place.url, { logger: false }), says(ErrorCode.storeBusy, "is being repaired"));
  await assert.rejects(connect(place.url), says(ErrorCode.storeBusy, "is being repaired"));
  await assert.rejects(repairStore(place.url, { salvage: false }), says(ErrorCode.storeBusy, "is being repaired"));
  const { promise: waiting, resolve: waits } = Promise.withResolvers<number | null>();
  const opening = place.engine({
    jobs: damageJobs,
    onEvent: (event) => void (event.name === "open.waits" && waits(event.pid)),
  });
  assert.equal(await Promise.race([waiting, opening.then(() => "it did not wait")]), child.pid);
  child.stdin.write("!");
  await said("sound true");
  const engine = await opening;
  assert.equal((await engine.get("note-1"))?.state, "queued");
});

test("FR-058 a repair that is killed in the middle blocks no process: the next start-up goes on", async (t) => {
  const { place, child } = await inTheMiddle(t);
  const opening = place.engine({ jobs: damageJobs });
  child.kill("SIGKILL");
  const engine = await opening;
  assert.equal((await engine.get("note-1"))?.state, "queued");
  await engine.close();
  await using attached = await attach(place.url, { logger: false });
  assert.equal((await attached.operator.integrity()).verdict, "PASSED");
});

test("FR-058 a repair is refused while a worker lives, and changes nothing", async (t) => {
  const place = new Place(t);
  await furnish(place, 20);
  const engine = await place.engine({ jobs: damageJobs });
  await engine.start();
  await assert.rejects(repairStore(place.url, { salvage: true }), says(ErrorCode.storeBusy, "open in another process"));
  assert.equal((await engine.get("note-1"))?.state, "queued");
});
