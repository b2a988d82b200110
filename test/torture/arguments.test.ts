// The command line of the rig of processes refuses what it does not know before any process is started, and leaves nothing behind.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const RIG = fileURLToPath(new URL("../../proof/torture/main.ts", import.meta.url));

for (const { args, says } of [
  { args: ["--store", "sqlite", "--faults", "clock,reset"], says: /^--faults reset: use .*writeLock, clock\.$/m },
  { args: ["--store", "sqlite", "--pgbouncer"], says: /^--pgbouncer: use it with --store postgres\.$/m },
  { args: ["--store", "file"], says: /^--store file: use sqlite or postgres or redis\.$/m },
  { args: ["--restore", "--store", "file"], says: /^--store file: use sqlite or postgres\.$/m },
  { args: ["--restore", "--rounds", "few"], says: /^--rounds few: use a whole number\.$/m },
  { args: ["--migrate", "--rows", "many"], says: /^--rows many: use a whole number\.$/m },
  { args: ["--previous", "--store", "file"], says: /^--store file: use sqlite or postgres\.$/m },
  { args: ["--restore", "--power-loss"], says: /^Choose one rig: / },
])
  test(`npm run torture -- ${args.join(" ")} is refused`, (t) => {
    const folder = mkdtempSync(join(tmpdir(), "outlive-test-torture-"));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    const { status, stderr } = spawnSync(process.execPath, ["--disable-warning=ExperimentalWarning", RIG, ...args], {
      encoding: "utf8",
      env: { ...process.env, TMPDIR: folder },
    });
    assert.equal(status, 1, stderr);
    assert.match(stderr, says);
    assert.deepEqual(readdirSync(folder), []);
    assert.doesNotMatch(readFileSync("/proc/mounts", "utf8"), new RegExp(folder));
  });
