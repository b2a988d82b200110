// Where a configuration comes from and who wins; and that errors in it name file and line.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { resolveCall, type ConfigSources, loadConfig } from "../../src/engine/config.ts";
import { SETTINGS } from "../../src/engine/settings.ts";
import { defineConfig, open, type OutliveError } from "../../src/index.ts";

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
    Object.keys(SETTINGS),
  );
  assert.ok(config.values.every(({ source }) => source === "default"));
});

test("the YAML of the first queue is understood, key by key, with its lines", async (t) => {
  const config = await load(folder(t, { "outlive.yaml": SEED }));
  assert.deepEqual(config.engine, {
    heartbeat: { interval: "30s", lease: "90s", sweep: "60s" },
    recovery: { onCrash: "retry", crashes: 3, integrityCheckOnStartup: true },
  });
  const source = Object.fromEntries(config.values.map((value) => [value.key, value.source]));
  assert.equal(source["recovery.onCrash"], "outlive.yaml:3");
  assert.equal(source["heartbeat.lease"], "outlive.yaml:9");
  assert.equal(source["recovery.integrityCheckOnStartup"], "outlive.yaml:5");
  assert.deepEqual(config.warnings, []);
});

test("the first queue's action pending is requeue, and only there", async (t) => {
  const queue = folder(t, { "outlive.yaml": SEED.replace("action: retry", "action: pending") });
  assert.equal((await load(queue)).engine.recovery?.onCrash, "requeue");
  const own = folder(t, { "outlive.yaml": "recovery:\n  onCrash: pending\n" });
  await assert.rejects(load(own), {
    code: "OPTION_INVALID",
    message: /^outlive\.yaml:2: recovery\.onCrash is "pending"/,
  });
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

test("a lease in intervals is one of the interval that holds at last", async (t) => {
  const cwd = folder(t, { "outlive.yaml": SEED });
  const longer = await load(cwd, { env: { OUTLIVE_HEARTBEAT_INTERVAL: "45s" } });
  assert.deepEqual(longer.engine.heartbeat, { interval: "45s", lease: "135s", sweep: "60s" });
  const short = await load(cwd, { env: { OUTLIVE_HEARTBEAT_INTERVAL: "250ms" } });
  assert.equal(short.engine.heartbeat?.lease, "750ms");
  const said = await load(cwd, { env: { OUTLIVE_HEARTBEAT_LEASE: "5m" } });
  assert.equal(said.engine.heartbeat?.lease, "5m");
  await assert.rejects(
    load(cwd, { env: { OUTLIVE_HEARTBEAT_INTERVAL: "soon" } }),
    /OUTLIVE_HEARTBEAT_INTERVAL: heartbeat\.interval is "soon"/,
  );
});

test("a boolean or a number that can't be read is refused by the name of its variable", async (t) => {
  const cwd = folder(t);
  for (const [text, value] of [
    ["1", true],
    ["TRUE", true],
    ["0", false],
    ["False", false],
  ] as const) {
    const { engine } = await load(cwd, { env: { OUTLIVE_SQLITE_ALLOW_UNSAFE: text } });
    assert.equal(engine.sqlite?.allowUnsafe, value, text);
  }
  for (const [name, key, text] of [
    ["OUTLIVE_SQLITE_ALLOW_UNSAFE", "sqlite.allowUnsafe", "yes"],
    ["OUTLIVE_SQLITE_ALLOW_NETWORK_FILESYSTEM", "sqlite.allowNetworkFilesystem", "on"],
    ["OUTLIVE_RECOVERY_CRASHES", "recovery.crashes", "three"],
    ["OUTLIVE_RECOVERY_CRASHES", "recovery.crashes", "0x3"],
    ["OUTLIVE_WORK_PROCESSES", "work.processes", " "],
  ] as const) {
    const refused = load(cwd, { env: { [name]: text } });
    const message = new RegExp(`^${name}: ${RegExp.escape(key)} is "${text}"\\. Use (true or false|a whole number)`);
    await assert.rejects(refused, { code: "OPTION_INVALID", message });
  }
});

test("a line is that of the key in its group, never that of a comment", async (t) => {
  const config = await load(
    folder(t, {
      "outlive.config.ts": `// store: nowhere; heartbeat: { lease: "1s" }
const other = { onCrash: "none" };
/*
 * poll: "1s"
 */
export default {
  retention: { finished: "1d" }, // poll: "9s"
  recovery: {
    onCrash: "fail",
  },
  heartbeat: { interval: "5s", lease: "20s" },
  work: { grace: "10s" },
  "poll": "2s",
  store: "sqlite:./x.db",
};
void other;
`,
    }),
  );
  const source = Object.fromEntries(config.values.map((value) => [value.key, value.source.split(":")[1]]));
  assert.equal(source["retention.finished"], "7");
  assert.equal(source["recovery.onCrash"], "9");
  assert.equal(source["heartbeat.interval"], "11");
  assert.equal(source["heartbeat.lease"], "11");
  assert.equal(source["work.grace"], "12");
  assert.equal(source["poll"], "13");
  assert.equal(source["store"], "14");
});

test("an error with its place still has its hint", async (t) => {
  const cwd = folder(t, { "outlive.yaml": "heartbeat:\n  interval: 10s\n  lease: 12s\n" });
  await assert.rejects(load(cwd), (error: OutliveError) => {
    assert.equal(error.hint, "Use at least two intervals; three is the default.");
    assert.equal(error.message.split(error.hint).length, 2, "once");
    return true;
  });
});

test("the file and the environment set how outlive work runs, and the environment wins", async (t) => {
  const cwd = folder(t, {
    "outlive.yaml":
      "work:\n  processes: 4\n  concurrency:\n    mail: 5\n    render: 2\n  grace: 10s\n  semiSpace: 8\n  http: 9090\n  log: json\n",
  });
  const file = await load(cwd);
  assert.deepEqual(file.work, {
    processes: 4,
    concurrency: { mail: 5, render: 2 },
    grace: "10s",
    semiSpace: 8,
    http: "9090",
    log: "json",
  });
  assert.deepEqual(file.engine, {}, "the engine hears nothing of it");
  const both = await load(cwd, {
    env: {
      OUTLIVE_WORK_PROCESSES: "2",
      OUTLIVE_WORK_CONCURRENCY: "mail=7",
      OUTLIVE_WORK_GRACE: "1m",
      OUTLIVE_WORK_SEMI_SPACE: "2",
      OUTLIVE_WORK_HTTP: "off",
      OUTLIVE_WORK_LOG: "pretty",
    },
  });
  const work = { processes: 2, concurrency: { mail: 7 }, grace: "1m", semiSpace: 2, http: "off", log: "pretty" };
  assert.deepEqual(both.work, work);
  assert.deepEqual(both.warnings, []);
  assert.deepEqual(
    file.values.filter(({ key }) => key.startsWith("work.")).map(({ source }) => source),
    [...[2, 4, 6, 7, 8, 9].map((line) => `outlive.yaml:${line}`), "default"],
  );
  const module = folder(t, {
    "outlive.config.ts": "export default {\n  work: {\n    concurrency: { mail: 5 },\n  },\n};\n",
  });
  assert.deepEqual((await load(module)).work, { concurrency: { mail: 5 } });
});

for (const [key, value] of [
  ["processes", "0"],
  ["processes", "two"],
  ["concurrency", "{ mail: 0 }"],
  ["concurrency", "many"],
  ["grace", "25"],
  ["grace", "30d"],
  ["http", "nowhere"],
  ["log", "loud"],
] as const) {
  test(`work.${key} of ${value} is refused with its place`, async (t) => {
    const cwd = folder(t, { "outlive.yaml": `work:\n  ${key}: ${value}\n` });
    await assert.rejects(load(cwd), {
      code: "OPTION_INVALID",
      message: new RegExp(`^outlive\\.yaml:2: work\\.${key} is .*\\. Use `),
    });
  });
}

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
  [
    "a module that throws",
    { "outlive.config.ts": 'throw new Error("no")' },
    /outlive\.config\.ts:1 can't be loaded: no\. It threw this when it was loaded/,
  ],
  [
    "a module with a syntax error",
    { "outlive.config.mts": 'export default {\n  store: "sqlite:./a.db"\n  jobs: "jobs/*.ts",\n};\n' },
    /outlive\.config\.mts:3 can't be loaded: Expected ',', got 'ident'\. Correct the file\.$/,
  ],
  [
    "YAML with a syntax error",
    { "outlive.yaml": "store: sqlite:./a.db\n  jobs: [\n" },
    /outlive\.yaml:1: Nested mappings are not allowed in compact mappings\. Correct the YAML\.$/,
  ],
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
    work: { processes: 2 },
  });
  await using engine = await open(config, { logger: false, poll: "3s" });
  assert.equal((await engine.health()).store["path"], ":memory:");
});

const CONFIG = defineConfig({
  store: "sqlite:./configured.db",
  jobs: "jobs/*.ts",
  heartbeat: { interval: "5s", probe: "100ms" },
  poll: "2s",
  work: { processes: 2 },
});

test("a call with a configuration: its options win over the environment, which wins over the configuration, setting by setting", () => {
  const env = { OUTLIVE_STORE: "sqlite:./named.db", OUTLIVE_HEARTBEAT_INTERVAL: "6s", OUTLIVE_POLL: "3s" };
  const logger = console;
  const { store, options } = resolveCall(CONFIG, { heartbeat: { interval: "7s" }, logger }, env);
  assert.equal(store, "sqlite:./named.db");
  assert.deepEqual(options, { heartbeat: { interval: "7s", probe: "100ms" }, poll: "3s", logger });
  assert.equal(resolveCall(CONFIG, {}, {}).store, "sqlite:./configured.db");
  assert.equal(resolveCall({}, {}, {}).store, "sqlite:./outlive.db");
});

test("a call with an address reads no environment", () => {
  const env = { OUTLIVE_STORE: "sqlite:./named.db", OUTLIVE_POLL: "3s" };
  assert.deepEqual(resolveCall("sqlite:./x.db", { poll: "1s" }, env), {
    store: "sqlite:./x.db",
    options: { poll: "1s" },
  });
});

test("a call and the command line resolve every setting of the engine to the same values", async (t) => {
  const cwd = folder(t, { "outlive.config.ts": `export default ${JSON.stringify(CONFIG)};` });
  for (const env of [{}, { OUTLIVE_STORE: "sqlite:./named.db", OUTLIVE_POSTGRES_SCHEMA: "other" }]) {
    const { store, engine } = await load(cwd, { env });
    assert.deepEqual(resolveCall(CONFIG, {}, env), { store, options: engine });
  }
});

test("what is wrong in a call's configuration or in the environment is named, and settings of the command line are not read", () => {
  const call = (config: object, options: object, env: NodeJS.ProcessEnv) => () => resolveCall(config, options, env);
  assert.throws(
    call({ hartbeat: { interval: "1s" } }, {}, {}),
    /the configuration: unknown key hartbeat\.interval\. Did you mean heartbeat\.interval\?/,
  );
  assert.throws(call({}, {}, { OUTLIVE_POLL: "soon" }), /OUTLIVE_POLL: poll is "soon"\. Use a duration/);
  assert.throws(
    call({ heartbeat: { lease: "8s" } }, {}, { OUTLIVE_HEARTBEAT_INTERVAL: "5s" }),
    /the configuration: heartbeat\.lease is shorter than two heartbeat intervals/,
  );
  call({ work: { processes: 0 } }, {}, { OUTLIVE_WORK_GRACE: "never" })();
  call({ heartbeat: { lease: "8s" } }, { heartbeat: { interval: "1s" } }, { OUTLIVE_HEARTBEAT_INTERVAL: "5s" })();
});

test("a pool of the program's own replaces the configured number of connections", () => {
  class Pool {
    readonly options = {};
    async connect(): Promise<void> {}
  }
  const pool = new Pool();
  const { options } = resolveCall(
    { store: "postgres:", postgres: { schema: "jobs", connections: 3 } },
    { postgres: { pool } },
    { OUTLIVE_POSTGRES_CONNECTIONS: "5" },
  );
  assert.deepEqual(options.postgres, { schema: "jobs", pool });
});

test("the check at start-up and the repair come from the first queue's YAML and from the environment, which wins", async (t) => {
  const off = "queue:\n  recovery:\n    integrityCheckOnStartup: false\n";
  const cwd = folder(t, { "outlive.yaml": off });
  assert.deepEqual((await load(cwd)).engine, { recovery: { integrityCheckOnStartup: false } });
  const env = { OUTLIVE_RECOVERY_INTEGRITY_CHECK: "1", OUTLIVE_RECOVERY_REPAIR: "auto" };
  assert.deepEqual((await load(cwd, { env })).engine, { recovery: { integrityCheckOnStartup: true, repair: "auto" } });
  const wrong = folder(t, { "outlive.yaml": "recovery:\n  repair: sometimes\n" });
  await assert.rejects(load(wrong), { code: "OPTION_INVALID", message: /^outlive\.yaml:2: .*recovery\.repair/ });
});
