// SIGKILL as a real process enters a write, sync, truncate or unlink: some calls of each scenario here, every one of them with
// `npm run torture -- --kill-at-call`.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { scenariosOf, scratchRoot } from "../../proof/torture/arguments.ts";
import { complaints, type KillTally, runKills } from "../../proof/torture/kill-at-call/campaign.ts";
import { type Kill, Site } from "../../proof/torture/kill-at-call/site.ts";
import { ensureStrace } from "../../proof/torture/strace.ts";
import { isBroken } from "../../proof/torture/verdict.ts";

const KILLS = 12;

describe("a process killed as it enters a call", () => {
  for (const name of ["create", "commit", "recovery", "checkpoint"]) {
    it(`NFR-005 loses and doubles nothing: ${name}, at ${KILLS} of its calls`, async () => {
      ensureStrace();
      const broken: Kill[] = [];
      const { kills, survived, acknowledged } = await runKills({
        scenarios: scenariosOf(name),
        most: KILLS,
        lanes: 2,
        root: scratchRoot(),
        onKill: (kill) => void (isBroken(kill.verdict) && broken.push(kill)),
      });
      assert.deepEqual(broken, []);
      assert.ok(kills >= KILLS - 2, `${kills} kills, ${survived} ended before their call`);
      assert.ok(acknowledged > 0);
    });
  }

  it("IT-004 four times in a row, each time in the middle of what the one before left, loses and doubles nothing", async () => {
    ensureStrace();
    const folder = mkdtempSync(join(scratchRoot(), "outlive-test-"));
    try {
      const [scenario] = scenariosOf("commit");
      const options = { codeCache: join(folder, "code"), broken: join(folder, "broken") };
      const site = new Site(scenario!, join(folder, "commit"), options);
      await site.prepare();
      const kill = await site.killAt(
        { call: "pwrite64", nth: 50 },
        { call: "fsync", nth: 5 },
        { call: "pwrite64", nth: 30 },
        { call: "fsync", nth: 3 },
      );
      assert.ok(kill, "every one of them was killed");
      assert.ok(!isBroken(kill.verdict), JSON.stringify(kill.verdict));
      assert.ok(kill.promises > 10);
      assert.equal(kill.left, null);
      assert.deepEqual(readdirSync(folder).toSorted(), ["code", "commit"], "a fixture that is sound is not kept");
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});

describe("the verdict on a run of kills", () => {
  const fine: KillTally = {
    kills: 100,
    survived: 5,
    lost: 0,
    corrupt: 0,
    committedTwice: 0,
    stuck: 0,
    acknowledged: 900,
    scenarios: { create: 60, commit: 40 },
  };

  it("is nothing if every promise was kept and nearly everybody died", () => {
    assert.deepEqual(complaints(fine), []);
    assert.deepEqual(complaints({ ...fine, kills: 3, survived: 1, scenarios: { create: 3 } }), []);
  });

  it("is that too many lived, though nothing is broken", () => {
    assert.match(complaints({ ...fine, survived: 6 }).join(), /^6 of 106 processes ended before the call .* 5 % may/);
    assert.match(complaints({ ...fine, kills: 1, survived: 99 }).join(), /^99 of 100 processes/);
  });

  it("is that no process died, in all or in one scenario", () => {
    assert.match(complaints({ ...fine, kills: 0, survived: 0, scenarios: {} }).join(), /Nobody was killed/);
    assert.match(complaints({ ...fine, scenarios: { create: 100, commit: 0 } }).join(), /in commit, so nothing/);
  });

  it("is each promise that was broken", () => {
    for (const kind of ["lost", "corrupt", "committedTwice", "stuck"] as const)
      assert.match(
        complaints({ ...fine, [kind]: 2 }).join(),
        /^2 of 100 kills left something (lost|corrupt|committed twice|stuck)\.$/,
      );
  });
});

function ran(...args: readonly string[]): { status: number | null; stdout: string; stderr: string } {
  ensureStrace();
  const main = fileURLToPath(new URL("../../proof/torture/main.ts", import.meta.url));
  return spawnSync(process.execPath, [main, "--kill-at-call", ...args], { encoding: "utf8" });
}

it("a broken fixture is kept as the kill left it, and reported with the command that kills there again and exit code 1", (t) => {
  const { status, stderr } = ran("--scenario", "commit", "--at", "pwrite64:50", "--plant", "forged-answer");
  assert.equal(status, 1, stderr);
  assert.match(stderr, /^commit, killed at pwrite64 50:\n {2}lost: .*\bforged\b/m);
  assert.match(stderr, /: npm run torture -- --kill-at-call --scenario commit --at pwrite64:50$/m);
  const left = /^ {2}as the kill left it: (.*)$/m.exec(stderr)?.[1];
  assert.ok(left, stderr);
  t.after(() => rmSync(dirname(dirname(left)), { recursive: true }));
  assert.deepEqual(readdirSync(dirname(dirname(left))), ["broken"], "and nothing else is");
  const db = new DatabaseSync(join(left, "jobs.db"), { readOnly: true });
  t.after(() => db.close());
  const { running } = db.prepare("SELECT count(*) AS running FROM outlive_jobs WHERE state < 2").get() as {
    readonly running: number;
  };
  assert.ok(running > 0, "the judge, who ends all work, was not there before");
});

it("a single point can be killed at, and a point that does not exist is refused", () => {
  const { status, stdout, stderr } = ran("--scenario", "commit", "--at", "fsync:3", "--json");
  assert.equal(status, 0, stderr);
  const { kills, notRun } = JSON.parse(stdout) as { readonly kills: number; readonly notRun: readonly string[] };
  assert.equal(kills, 1);
  assert.ok(notRun.includes("every call: --at fsync:3 alone"));
  for (const [at, says] of [
    [["--scenario", "commit", "--at", "fsync"], /--at fsync: use a call and its number/],
    [["--scenario", "commit", "--at", "write:3"], /the calls are pwrite64, fsync/],
    [["--at", "fsync:3"], /name the one scenario/],
  ] as const) {
    const refused = ran(...at);
    assert.equal(refused.status, 1);
    assert.match(refused.stderr, says);
  }
});

it("the usage text names every option of the rig", () => {
  const { status, stdout } = ran("--help");
  assert.equal(status, 0);
  const [, own] = stdout.split("--kill-at-call: ");
  for (const option of ["--kills", "--scenario", "--lanes", "--at", "--plant"])
    assert.ok(own!.includes(option), option);
});

it("the last line of a run names what it does not do, and it ends with 0", () => {
  const { status, stdout, stderr } = ran("--kills", "2", "--scenario", "create", "--json");
  assert.equal(status, 0, stderr);
  const { kills, notRun } = JSON.parse(stdout) as { readonly kills: number; readonly notRun: readonly string[] };
  assert.ok(kills > 0);
  for (const part of [/^every call: --kills 2/, /^other scenarios/, /^calls of other threads/, /^PostgreSQL/])
    assert.ok(
      notRun.some((what) => part.test(what)),
      `${part.source} in ${notRun.join("; ")}`,
    );
});
