// Where a configuration comes from and who wins; and that what is wrong in it is said with file and line.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { type ConfigSources, loadConfig } from "../src/config-file.ts";
import { SETTINGS } from "../src/config-settings.ts";
import { defineConfig, open } from "../src/index.ts";

function folder(t: TestContext, files: Readonly<Record<string, string>> = {}): string {
  const path = mkdtempSync(join(tmpdir(), "outlive-config-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(path, name), text);
  return path;
}

const load = (cwd: string, more: Partial<ConfigSources> = {}): ReturnType<typeof loadConfig> =>
  loadConfig({ cwd, env: {}, flags: {}, ...more });

const SEED = `queue:
  recovery:
    action: retry  # retry, fail, pending
    maxRecoveryAttempts: 3
    integrityCheckOnStartup: true

  heartbeat:
    intervalSeconds: 30
    staleThresholdMultiplier: 3
    detectionIntervalSeconds: 60
`;

test("without a file everything is the default, and says so", async (t) => {
  const config = await load(folder(t));
  assert.equal(config.store, "sqlite:./outlive.db");
  assert.deepEqual(config.jobs, ["jobs/**/*.{ts,mts,js,mjs}"]);
  assert.deepEqual(config.engine, {});
  assert.equal(config.file, null);
  assert.deepEqual(
    config.values.map(({ key }) => key),
    SETTINGS.map(({ key }) => key),
  );
  assert.ok(config.values.every(({ source }) => source === "default"));
});

test("the YAML of the first queue is understood, key by key, with its lines", async (t) => {
  const config = await load(folder(t, { "outlive.yaml": SEED }));
  assert.deepEqual(config.engine, {
    heartbeat: { interval: "30s", lease: "90s", sweep: "60s" },
    recovery: { action: "retry", maxRecoveryAttempts: 3 },
  });
  const source = Object.fromEntries(config.values.map((value) => [value.key, value.source]));
  assert.equal(source["recovery.action"], "outlive.yaml:3");
  assert.equal(source["heartbeat.lease"], "outlive.yaml:9");
  assert.deepEqual(config.warnings, [
    "outlive.yaml:5: queue.recovery.integrityCheckOnStartup is accepted but has no effect in this version.",
  ]);
});

test("a TypeScript configuration is loaded, and flags win over the environment, which wins over the file", async (t) => {
  const cwd = folder(t, {
    "outlive.config.ts":
      'export default {\n  store: "sqlite:./file.db",\n  heartbeat: { interval: "5s" as string },\n  poll: "2s",\n};\n',
  });
  const file = await load(cwd);
  assert.equal(file.store, "sqlite:./file.db");
  assert.deepEqual(file.engine, { heartbeat: { interval: "5s" }, poll: "2s" });
  const env = await load(cwd, { env: { OUTLIVE_STORE: "sqlite:./env.db", OUTLIVE_POLL: "3s" } });
  assert.equal(env.store, "sqlite:./env.db");
  assert.equal(env.engine.poll, "3s");
  const flags = await load(cwd, { env: { OUTLIVE_STORE: "sqlite:./env.db" }, flags: { store: "sqlite:./flag.db" } });
  assert.equal(flags.store, "sqlite:./flag.db");
  const shown = flags.values
    .filter(({ key }) => key === "store" || key === "heartbeat.interval")
    .map(({ source }) => source);
  assert.deepEqual(shown, ["--store", "outlive.config.ts:3"]);
});

for (const [what, files, message] of [
  [
    "an unknown key",
    { "outlive.yaml": "store: sqlite:./a.db\nqueue:\n  heartbeat:\n    intervalSecond: 30\n" },
    /outlive\.yaml:4: unknown key queue\.heartbeat\.intervalSecond\. Did you mean queue\.heartbeat\.intervalSeconds\?/,
  ],
  [
    "an impossible pair",
    { "outlive.yaml": "heartbeat:\n  interval: 10s\n  lease: 12s\n" },
    /outlive\.yaml:3: heartbeat\.lease is shorter than two heartbeat intervals/,
  ],
  ["a value out of its set", { "outlive.yaml": "\ndurability: loose\n" }, /outlive\.yaml:2: .*durability/],
  ["YAML that is none", { "outlive.yaml": "store: [\n" }, /outlive\.yaml:\d+: /],
  ["a store that is no text", { "outlive.yaml": "store: 7\n" }, /outlive\.yaml:1: store is 7/],
  [
    "two files",
    { "outlive.yaml": "", "outlive.config.ts": "export default {}" },
    /There are 2 configuration files: outlive\.config\.ts, outlive\.yaml/,
  ],
  [
    "a module without a default export",
    { "outlive.config.ts": "export const a = 1;" },
    /outlive\.config\.ts has no default export/,
  ],
  ["a module that throws", { "outlive.config.ts": 'throw new Error("no")' }, /outlive\.config\.ts can't be loaded: no/],
] as const) {
  test(`${what} is an error that names the place`, async (t) => {
    await assert.rejects(load(folder(t, files)), (error: Error & { code: string }) => {
      assert.match(error.message, message);
      assert.equal(error.code, "OPTION_INVALID");
      return true;
    });
  });
}

test("a configuration file that is named but not there is an error", async (t) => {
  await assert.rejects(
    load(folder(t), { flags: { file: "nowhere.yaml" } }),
    /There is no configuration file nowhere\.yaml/,
  );
});

test("an unknown variable of ours is a warning with the one that was meant", async (t) => {
  const { warnings } = await load(folder(t), { env: { OUTLIVE_STOR: "x" } });
  assert.deepEqual(warnings, ["The variable OUTLIVE_STOR is not known; did you mean OUTLIVE_STORE?"]);
});

test("open() takes what defineConfig made, and its own options win", async () => {
  const config = defineConfig({
    store: "sqlite::memory:",
    jobs: "jobs/*.ts",
    heartbeat: { interval: "1s" },
    poll: "2s",
  });
  await using engine = await open(config, { logger: false, poll: "3s" });
  assert.equal((await engine.health()).store["path"], ":memory:");
});
