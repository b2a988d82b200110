// C19: a password in an uncaught error was redacted in the log and stored as it was in the incident.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { evidenceOf } from "../../src/cli/supervisor/child.ts";
import { job } from "../../src/index.ts";
import { Fleet } from "../supervisor/fleet.ts";
import { cli } from "../support/cli.ts";
import { untilTrue } from "../support/processes.ts";
import { operatorOf } from "../support/former-names.ts";

const SECRET = "hunter2";

test("C19: an uncaught error that names a password is stored in the incident without it", async (t) => {
  const fleet = new Fleet(t);
  const leaky = job<null>("leaky");
  const engine = await fleet.place.engine({ jobs: [leaky] });
  const modules = join(fleet.place.folder, "jobs");
  mkdirSync(modules);
  writeFileSync(
    join(modules, "leaky.ts"),
    `import { job } from ${JSON.stringify(new URL("../../src/index.ts", import.meta.url).href)};
     export const leaky = job("leaky").handle(() => {
       setImmediate(() => { throw new Error("connect to postgres://me:${SECRET}@db/x failed, password=${SECRET}"); });
       return new Promise(() => {});
     });`,
  );
  await engine.enqueue(leaky, null);
  fleet.work({ globs: [join(modules, "*.ts")] });
  const report = await untilTrue(
    async () => engine.report((await engine.incidents()).at(-1)?.id),
    (found) => found?.deadWorkers[0]?.evidence?.includes("exited with code") === true,
    "the incident has its evidence",
  );
  assert.match(
    report!.deadWorkers[0]!.evidence!,
    /exited with code 1: Error: connect to postgres:\/\/me:\[redacted\]@db\/x failed, password=\[redacted\]( \(pid .*\))?$/,
  );
  const { stdout } = await cli(t, ["--json", "incident", report!.incidents[0]!], { store: fleet.place.url });
  assert.ok(stdout.includes("[redacted]") && !stdout.includes(SECRET), stdout);
});

test("C19: evidence is redacted before it is cut, on one line, and cut between code points", () => {
  const ending = { code: 1, signal: null, oomKills: null, killedBecause: null };
  const address = `Error: ${"x".repeat(275)} ://me:${SECRET}${"x".repeat(50)}@db`;
  assert.ok(!evidenceOf({ ...ending, lastWords: address }).includes(SECRET), "half of an address is still an address");
  const emoji = evidenceOf({ ...ending, lastWords: `Error: ${"x".repeat(292)}😀` });
  assert.ok(emoji.isWellFormed(), emoji.slice(-5));
  assert.equal(
    evidenceOf({ ...ending, lastWords: "Error: \u001b[31mred\u0007\n" }),
    "exited with code 1: Error: \\x1b[31mred\\x07",
  );
});

// Deaths were noted by pid on 01d593d, so this shows nothing there.
test("U: what another supervisor notes about a death is redacted, too", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const victim = fleet.place.child({ heartbeat: {} });
  const { worker } = await victim.untilFact("working");
  victim.kill();
  await victim.exited;
  await operatorOf(engine).noteDeath(String(worker), `exited with code 1: password=${SECRET}`);
  const report = await operatorOf(engine).recover();
  assert.match(report!.deadWorkers[0]!.evidence!, /exited with code 1: password=\[redacted\]$/);
});
