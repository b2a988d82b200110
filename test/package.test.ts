// Holds what users install: the tarball of `npm pack`, built from the sources and laid out as npm would in a project of its
// own, with nothing but the declared dependencies next to it. It is loaded by the Node that runs the tests.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { environment, installPackage } from "./support/installed-package.ts";
import { untilTrue } from "./support/processes.ts";

/** The public surface: what each sub-path exports as values, typed here by hand. A sub-path without a list must only load. */
const surface: Readonly<Record<string, readonly string[] | undefined>> = {
  outlive: [
    "ErrorCode",
    "Interruption",
    "OutliveError",
    "RELAXED_HEARTBEAT",
    "RetryLater",
    "TerminalError",
    "attach",
    "batch",
    "collection",
    "defineConfig",
    "job",
    "open",
    "schedule",
  ],
  "outlive/client": ["batch", "ErrorCode", "OutliveError", "collection", "connect", "job", "schedule"],
  "outlive/sqlite": ["sqlite"],
  "outlive/postgres": ["enqueue", "postgres"],
  "outlive/redis": ["ioredis", "iovalkey", "nodeRedis"],
  "outlive/blobs": ["azure", "fileSystem", "openBlobs", "s3", "verified"],
  "outlive/files": ["csv", "ndjson"],
  "outlive/requests": ["request", "secret", "standardWebhooks"],
  "outlive/rabbitmq": ["rabbitmq"],
  "outlive/metrics": ["aggregatedText", "attachMetrics", "lasting"],
  "outlive/otel": ["openTelemetry"],
  "outlive/log": ["jsonWriter", "prettyWriter"],
  "outlive/testing": [
    "answers",
    "assertEnqueued",
    "blobConformance",
    "crashTest",
    "effect",
    "enqueued",
    "virtualClock",
  ],
};

type Manifest = {
  readonly exports: Record<string, unknown>;
  readonly scripts?: Record<string, string>;
  readonly dependencies?: Record<string, string>;
  readonly engines: { readonly node: string };
  readonly homepage: string;
  readonly bugs: { readonly url: string };
  readonly repository: { readonly url: string };
};
type Lock = { readonly packages: Record<string, { readonly dev?: boolean; readonly hasInstallScript?: boolean }> };

const run = promisify(execFile);
const root = fileURLToPath(new URL("../", import.meta.url));
let temporary: string;
/** A project that has installed the package. */
let project: string;
let install: (name: string) => Promise<void>;
let packedFiles: readonly string[];
let packedBytes: number;
let manifest: Manifest;

before(async () => {
  temporary = await realpath(await mkdtemp(join(tmpdir(), "outlive-package-")));
  const installed = await installPackage<Manifest>(temporary);
  ({ project, manifest, install, files: packedFiles, bytes: packedBytes } = installed);
  // @types/node is what a TypeScript user has anyway; the rest must be declared. Optional peers are not there.
  for (const name of ["@types/node", "undici-types"]) await install(name);
});

after(async () => {
  await rm(temporary, { recursive: true, force: true });
});

test("the sub-paths of the package are those that are listed here", () => {
  const paths = Object.keys(manifest.exports).filter((path) => path !== "./package.json");
  assert.deepEqual(paths.map((path) => path.replace(/^\./, "outlive")).sort(), Object.keys(surface).sort());
});

for (const [name, expected] of Object.entries(surface)) {
  test(`a CommonJS program can require ${name}, and sees the names that are listed here`, async () => {
    const names = await exportedNames("program.cjs", `const names = Object.keys(require("${name}"));`);
    if (expected !== undefined) assert.deepEqual(names, [...expected].sort());
  });

  test(`an ES module can import ${name}, and sees the names that are listed here`, async () => {
    const names = await exportedNames("program.mjs", `const names = Object.keys(await import("${name}"));`);
    if (expected !== undefined) assert.deepEqual(names, [...expected].sort());
  });
}

test("without prom-client, metrics say what to install: in a program, by `outlive metrics` and by `outlive work --http`, whose probes work", async (t) => {
  const sentence =
    /Metrics need the package `prom-client`, which is not installed\.\s+Run `npm install prom-client` in this program\./;
  const program = `import { attachMetrics } from "outlive/metrics";
    try { attachMetrics({}); } catch ({ code, message }) { console.log(code, message); }`;
  await writeFile(join(project, "measured.mjs"), program);
  const { stdout } = await run(process.execPath, ["measured.mjs"], { cwd: project, env: environment() });
  assert.match(stdout, /^DRIVER_MISSING /);
  assert.match(stdout, sentence);

  await writeFile(
    join(project, "idle.mjs"),
    'import { job } from "outlive";\nexport const idle = job("idle");\nidle.handle(() => {});\n',
  );
  const bin = join(project, "node_modules", "outlive", "dist", "cli", "bin.js");
  const store = ["--store", `sqlite:${join(project, "measured.db")}`];
  const worker = spawn(
    process.execPath,
    [bin, "work", "idle.mjs", "--http", "127.0.0.1:0", "--log", "json", ...store],
    {
      cwd: project,
      stdio: ["ignore", "ignore", "pipe"],
      env: environment(),
    },
  );
  t.after(() => worker.kill("SIGKILL"));
  let said = "";
  worker.stderr.setEncoding("utf8").on("data", (text: string) => (said += text));
  const [, address] = (await untilTrue(
    () => /"http":"(127\.0\.0\.1:\d+)"/.exec(said),
    (found) => found !== null,
    "it listens",
  ))!;
  assert.equal((await fetch(`http://${address}/live`)).status, 200);
  const metrics = await fetch(`http://${address}/metrics`);
  assert.equal(metrics.status, 500);
  assert.match(await metrics.text(), sentence);
  await untilTrue(
    () => said,
    (text) => sentence.test(text),
    "it says so when it starts",
  );
  const failed = await run(process.execPath, [bin, "metrics", ...store], { cwd: project, env: environment() }).then(
    () => assert.fail("outlive metrics succeeded"),
    (error: { code: number; stderr: string }) => error,
  );
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, sentence);
});

test("without their SDKs, blobs and CSV say what to install, when they are used and not before", async () => {
  const program = `import { azure, s3 } from "outlive/blobs";
    import { csv } from "outlive/files";
    const tell = ({ code, message }) => console.log(code, message);
    await s3({ bucket: "b" }).head("k").catch(tell);
    await azure({ url: "https://a.example/container" }).head("k").catch(tell);
    await csv("rows.csv").chunks().next().catch(tell);`;
  await writeFile(join(project, "peers.mjs"), program);
  const { stdout } = await run(process.execPath, ["peers.mjs"], { cwd: project, env: environment() });
  for (const name of ["@aws-sdk/client-s3", "@azure/storage-blob", "csv-parse"])
    assert.match(stdout, new RegExp(`^DRIVER_MISSING .*\\bRun \`npm install ${name}\` in this program\\.$`, "m"));
});

test("the declarations compile in a strict TypeScript project, under both ways of resolving modules", async () => {
  const imports = Object.keys(surface).map((name, index) => `import * as m${index} from "${name}";`);
  const uses = Object.keys(surface).map((_, index) => `void m${index};`);
  // What a program measures with is its own.
  for (const name of ["prom-client", "@opentelemetry/api"]) await install(name);
  await writeFile(join(project, "package.json"), JSON.stringify({ type: "module" }));
  await writeFile(join(project, "program.ts"), [...imports, ...uses, ""].join("\n"));
  const tsc = join(root, "node_modules", "typescript", "bin", "tsc");
  for (const module of [["nodenext"], ["preserve", "--moduleResolution", "bundler"]]) {
    const options = ["--noEmit", "--strict", "--target", "esnext", "--types", "node", "--exactOptionalPropertyTypes"];
    await run(process.execPath, [tsc, ...options, "--skipLibCheck", "false", "--module", ...module, "program.ts"], {
      cwd: project,
    }).catch((error: { stdout?: string }) => assert.fail(`${module.join(" ")}:\n${error.stdout}`));
  }
});

/** A program with one mistake per line, and what the compiler says of it. */
const MISTAKES: readonly (readonly [line: string, said: RegExp])[] = [
  ["await engine.enqueue(mail, { to: 1 });", /Type 'number' is not assignable to type 'string'/],
  [
    "await engine.enqueue(mail, { to: 'ann' }, { priorty: 1 });",
    /'priorty' does not exist.*Did you mean to write 'priority'/,
  ],
  ["job('a', { input: z.object({ at: z.date() }) });", /the input of a job is stored as JSON: no Date, Buffer, bigint/],
  ["job('b', { timeot: '5m' });", /'timeot' does not exist.*Did you mean to write 'timeout'/],
  ["await open('sqlite:./x.db', { job: [mail] });", /'job' does not exist.*Did you mean to write 'jobs'/],
  [
    "await open('sqlite:./x.db', { jobs: [{ name: 'mail' }] });",
    /Property 'settings' is missing in type '{ name: string; }'/,
  ],
  ["await engine.work({ concurrency: { mial: 2 } });", /'mial' does not exist in type '.*readonly mail\?: number/],
  ["await engine.work({ only: ['mail'] });", /Type 'string' is not assignable to type '{ readonly name: string; }'/],
  [
    "const text: number = await engine.result((await engine.enqueue(mail, { to: 'ann' })).id);",
    /'{ sent: boolean; }' is not assignable to type 'number'/,
  ],
];

test("what the compiler says of a mistake names it: a wrong input, a Date in a schema, an option or a kind that is not there", async () => {
  await install("zod");
  const head = [
    'import { job, open } from "outlive";',
    'import * as z from "zod";',
    'const mail = job("mail", { input: z.object({ to: z.string() }), output: z.object({ sent: z.boolean() }) });',
    "mail.handle(() => ({ sent: true }));",
    'const engine = await open("sqlite:./x.db", { jobs: [mail] });',
  ];
  await writeFile(join(project, "package.json"), JSON.stringify({ type: "module" }));
  await writeFile(join(project, "mistakes.ts"), [...head, ...MISTAKES.map(([line]) => line), ""].join("\n"));
  const tsc = join(root, "node_modules", "typescript", "bin", "tsc");
  const options = ["--noEmit", "--strict", "--target", "esnext", "--module", "nodenext", "--types", "node"];
  const { stdout } = await run(process.execPath, [tsc, ...options, "--pretty", "false", "mistakes.ts"], {
    cwd: project,
  }).catch((error: { stdout: string }) => error);
  const said = stdout.split(/^(?=mistakes\.ts\()/m);
  assert.equal(said.length, MISTAKES.length, stdout);
  for (const [at, [, pattern]] of MISTAKES.entries()) {
    assert.ok(said[at]!.startsWith(`mistakes.ts(${head.length + at + 1},`), said[at]);
    assert.match(said[at]!.replaceAll("\n", " "), pattern);
  }
});

test("nothing runs when the package or one of its dependencies is installed", async () => {
  const onInstall = ["preinstall", "install", "postinstall", "prepare", "preprepare", "postprepare"];
  assert.deepEqual(
    Object.keys(manifest.scripts ?? {}).filter((name) => onInstall.includes(name)),
    [],
  );
  // npm runs node-gyp for a package with a binding.gyp, without any script.
  assert.deepEqual(
    packedFiles.filter((path) => /\.gyp$|\.node$/.test(path)),
    [],
  );
  const lock = JSON.parse(await readFile(join(root, "package-lock.json"), "utf8")) as Lock;
  const published = Object.entries(lock.packages).filter(([path, { dev }]) => path !== "" && dev !== true);
  assert.deepEqual(
    published.filter(([, { hasInstallScript }]) => hasInstallScript === true),
    [],
  );
});

test("the package holds the built files and the documents, and no test or source", () => {
  const documents = /^(package\.json|LICENSE|README\.md)$/;
  const built = /^dist\/.+\.(js|d\.ts)$/;
  assert.deepEqual(
    packedFiles.filter((path) => !documents.test(path) && !built.test(path)),
    [],
  );
  assert.deepEqual(
    packedFiles.filter((path) => /\.test\.|(^|\/)test\//.test(path)),
    [],
  );
  assert.ok(packedFiles.includes("dist/index.js") && packedFiles.includes("LICENSE"));
});

/** A Node without SQLite and zstd that calls itself 20: what an older one does with the package, on any machine. */
const AS_OLD_NODE = `data:text/javascript,${encodeURIComponent(`
import { registerHooks, syncBuiltinESMExports } from "node:module";
import zlib from "node:zlib";
Object.defineProperty(process, "versions", { value: { ...process.versions, node: "20.20.2" } });
const builtin = process.getBuiltinModule;
process.getBuiltinModule = (name) => (name === "node:sqlite" ? undefined : builtin(name));
for (const name of ["zstdDecompress", "createZstdDecompress"]) delete zlib[name];
syncBuiltinESMExports();
registerHooks({
  resolve: (name, context, next) => {
    if (name === "node:sqlite") throw new Error("No such built-in module: node:sqlite");
    return next(name, context);
  },
});
`)}`;

test("on an older Node every entry loads, and open and connect say which Node is needed", async (t) => {
  const entries = Object.keys(manifest.exports)
    .filter((path) => path !== "./package.json")
    .map((path) => `outlive${path.slice(1)}`);
  const program = `
    for (const entry of ${JSON.stringify(entries)}) await import(entry);
    const { open } = await import("outlive");
    const { connect } = await import("outlive/client");
    for (const call of [open, connect])
      await call("sqlite:./old.db").catch((error) => console.log(error.name, error.code, error.message));`;
  await writeFile(join(project, "old.mjs"), program);
  const found = await run("/usr/bin/env", ["node", "--version"], {
    env: { ...environment(), PATH: SYSTEM_PATH },
  }).catch(() => ({ stdout: "" }));
  const real = /^v2[0-3]\./.test(found.stdout) ? [["/usr/bin/env", ["node"]] as const] : [];
  t.diagnostic(`as an old Node, and ${real.length === 0 ? "no" : found.stdout.trim()} real one`);
  for (const [node, options] of [[process.execPath, ["--import", AS_OLD_NODE]] as const, ...real]) {
    const env = { ...environment(), PATH: SYSTEM_PATH };
    const { stdout } = await run(node, [...options, "old.mjs"], { cwd: project, env });
    const line =
      /^OutliveError STORE_UNUSABLE Outlive needs Node 24\.16 or newer, and this is Node 2\d\.[\d.]+\. Install a newer Node\. Nothing was opened\.$/;
    const lines = stdout.trimEnd().split("\n");
    assert.equal(lines.length, 2, stdout);
    for (const one of lines) assert.match(one, line);
  }
});

/** Without the Node of node_modules. */
const SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin";

test("README of the package links to nothing that is not there: every link and picture names the repository of package.json", async () => {
  const readme = await readFile(join(project, "node_modules/outlive/README.md"), "utf8");
  const targets = [...readme.matchAll(/\]\(([^)]+)\)/g)].map(([, target]) => target!);
  assert.ok(targets.length > 20);
  assert.deepEqual(
    targets.filter((target) => !target.startsWith("https://")),
    [],
  );
  const place = manifest.homepage.replace(/#readme$/, "");
  assert.ok(readme.includes(`](${place}/blob/HEAD/docs/getting-started.md)`));
  assert.ok(readme.includes(`](${place.replace("github.com", "raw.githubusercontent.com")}/HEAD/docs/demo.svg)`));
  const repositorys = await readFile(new URL("../README.md", import.meta.url), "utf8");
  assert.ok(repositorys.includes("](docs/demo.svg)"), "the repository's own stays as it is");
});

// One file per source file, with the documents, was 868 KB. As entries and chunks with short names of locals it was 711, without the documents,
// which are in the repository, 617, without comments that no editor shows and the comments of SQL and Lua 596. Changes by hand, collections on Redis,
// middleware, tracing and what came after brought it to 675; without the conformance suite of stores, which only the repository needs, it is below 600, and without the rules and the dashboard for Prometheus 596.
test("the tarball is at most 600 KB", () => {
  assert.ok(packedBytes <= 600_000, `${packedBytes} bytes in ${packedFiles.length} files`);
});

test("nothing in the package installs or starts a server, belongs to the proof, or points to a source map", async () => {
  const foreign: Readonly<Record<string, RegExp>> = {
    "an installer": /apt-get|\bnpm ci\b/,
    "a server starter": /"(initdb|pg_ctl|pgbouncer)"|unix_socket_directories/,
    "a file of the proof": /["'`/]proof\//,
    "a source map": /sourceMappingURL|sourcesContent/,
  };
  const found: string[] = [];
  for (const path of packedFiles.filter((file) => file.startsWith("dist/"))) {
    const text = await readFile(join(project, "node_modules", "outlive", path), "utf8");
    for (const [what, pattern] of Object.entries(foreign)) if (pattern.test(text)) found.push(`${path} holds ${what}`);
  }
  assert.deepEqual(found, []);
});

test("the code is one file per entry and program, and chunks: functions, classes and the texts of errors are as they were written", async () => {
  const code = packedFiles.filter((path) => path.endsWith(".js"));
  assert.ok(code.length <= 120, `${code.length} files`);
  const program = `import { job, open } from "outlive";
    import { prettyWriter } from "outlive/log";
    const failing = job("failing", { retry: { attempts: 1 } });
    failing.handle(function mine() { throw new Error("as it is"); });
    const engine = await open("sqlite::memory:", { jobs: [failing], logger: prettyWriter() });
    await engine.enqueue(failing, null);
    await engine.runUntilIdle();
    await engine.close();
    await engine.enqueue(failing, null).catch(({ stack }) => console.log(stack));
    try { job("no name of a kind", {}); } catch ({ stack }) { console.log(stack); }`;
  await writeFile(join(project, "failing.mjs"), program);
  const { stdout, stderr } = await run(process.execPath, ["failing.mjs"], { cwd: project, env: environment() });
  // The log of a failed attempt has the user's own frames, and none of the package's.
  assert.match(stderr, /as it is\n\s+at .*\bmine\b.* \(file:\S+failing\.mjs:4:\d+\)\n(?!\s+at )/);
  assert.match(stdout, /^OutliveError: \S.*\.\n/);
  assert.match(stdout, /\n\s+at (?:async )?(?:Engine|Client)\.enqueue \(/);
  // Where an error is made, and what a program called, whatever lies in between.
  assert.match(stdout, /^OutliveError: This client is closed.*\n\s+at closedError \(/);
  assert.match(stdout, /^OutliveError: The kind .* is not a name.*\n\s+at assertKind \([^]*\n\s+at job \(/m);
});

test("package.json says which Node is needed, and where the project lives in one place", () => {
  assert.equal(manifest.engines.node, ">=24.16");
  const home = manifest.homepage.replace(/#readme$/, "");
  assert.equal(manifest.repository.url, `git+${home}.git`);
  assert.equal(manifest.bugs.url, `${home}/issues`);
});

test("the lock file names no registry, so that any will do", async () => {
  assert.doesNotMatch(await readFile(join(root, "package-lock.json"), "utf8"), /"resolved"|https?:\/\/[^"]*\.tgz/);
});

async function exportedNames(file: string, program: string): Promise<string[]> {
  await writeFile(join(project, file), `${program}\nconsole.log(JSON.stringify(names.sort()));\n`);
  const { stdout, stderr } = await run(process.execPath, [file], { cwd: project, env: environment() });
  assert.equal(stderr, "", "loading the package warns of nothing");
  return (JSON.parse(stdout) as string[]).filter((name) => name !== "__esModule" && name !== "module.exports");
}

test("in an empty folder: init, work, enqueue, kill -9, and the work goes on and is reported", async (t) => {
  // As `npm init -y` leaves it: a CommonJS package.
  await writeFile(join(project, "package.json"), JSON.stringify({ name: "app", type: "commonjs" }));
  const bin = join(project, "node_modules", "outlive", "dist", "cli", "bin.js");
  const outlive = async (...words: string[]): Promise<string> =>
    (await run(process.execPath, [bin, ...words], { cwd: project })).stdout;
  const asked = async (...words: string[]): Promise<unknown> => JSON.parse(await outlive(...words, "--json"));
  assert.deepEqual(((await asked("init")) as { written: string[] }).written, [
    "outlive.config.mts",
    "jobs/hello.mts",
    ".gitignore",
  ]);

  const worker = spawn(process.execPath, [bin, "work"], { cwd: project, stdio: "ignore" });
  t.after(() => worker.kill("SIGKILL"));
  type Status = { readonly workers: readonly { readonly pid: number; readonly known: string }[] };
  const live = async (): Promise<number[]> => {
    const { workers } = (await asked("status").catch(() => ({ workers: [] }))) as Status;
    return workers.filter(({ known }) => known === "live").map(({ pid }) => pid);
  };
  const [first] = await untilTrue(live, (pids) => pids.length === 1, "the worker lives");
  const { id } = (await asked("enqueue", "hello", '{"name":"world"}')) as { id: string };
  type Job = { readonly state: string; readonly attempt: number; readonly steps: readonly unknown[] };
  const job = async (): Promise<Job> => (await asked("job", id)) as Job;
  await untilTrue(job, ({ steps }) => steps.length >= 2, "it has finished some steps");
  process.kill(first!, "SIGKILL");
  const again = await untilTrue(job, ({ attempt, state }) => attempt === 2 && state === "running", "it runs again");
  assert.ok(again.steps.length >= 2, "what was done is kept");
  assert.match(await outlive("why", id), /It has run .*attempt 2/);
  assert.match(await outlive("incidents"), /gone/);
  const incidents = (await asked("incidents")) as { readonly incidents: readonly { readonly id: string }[] };
  assert.match(
    await outlive("incident", incidents.incidents[0]!.id),
    new RegExp(`killed by SIGKILL[^]*${id} .*runs again \\(crash 1\\)`),
  );
  assert.match(await outlive("status"), /hello/);
  worker.kill("SIGTERM");
  await untilTrue(live, (pids) => pids.length === 0, "it has drained");
});

test("the demo runs from the package: its worker processes are built files too", async () => {
  const bin = join(project, "node_modules", "outlive", "dist", "cli", "bin.js");
  const { stdout } = await run(process.execPath, [bin, "demo", "--seconds", "6", "--jobs", "600", "--json"], {
    cwd: project,
    env: environment(),
  }).catch((error: { stderr?: string }) => assert.fail(error.stderr));
  const { enqueued, lost, committedTwice } = JSON.parse(stdout) as Record<string, number>;
  assert.deepEqual({ enqueued, lost, committedTwice }, { enqueued: 601, lost: 0, committedTwice: 0 });
});

test("outlive torture runs from the package: its worker processes are built files too", async () => {
  const bin = join(project, "node_modules", "outlive", "dist", "cli", "bin.js");
  const args = ["torture", "--kills", "2", "--workers", "3", "--seed", "1", "--json"];
  const { stdout } = await run(process.execPath, [bin, ...args, "--store", `sqlite:${join(project, "app.db")}`], {
    cwd: project,
    env: environment(),
  }).catch((error: { stdout?: string; stderr?: string }) => assert.fail(`${error.stdout}${error.stderr}`));
  const { kills, lost, committedTwice } = JSON.parse(stdout) as Record<string, number>;
  assert.ok(kills! >= 2, stdout);
  assert.deepEqual({ lost, committedTwice }, { lost: 0, committedTwice: 0 });
});
