// SIGKILL as a real process enters a write, sync, truncate or unlink: some calls of each scenario here, every one of them with
// `npm run torture -- --kill-at-call`.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { scenariosOf, scratchRoot } from "../../torture/arguments.ts";
import { type Kill, runKills, Site } from "../../torture/kill-at-call/campaign.ts";
import { ensureStrace } from "../../torture/strace.ts";
import { isBroken } from "../../torture/verdict.ts";

const KILLS = 8;

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
      const site = new Site(scenario!, join(folder, "commit"), join(folder, "code"));
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
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});
