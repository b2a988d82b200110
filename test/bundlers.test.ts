// Programs that esbuild has bundled into one file, from the package as users install it, run as real processes. A web process may
// be bundled. A worker may not: its maintenance thread and the checks of a SQLite file run files of their own, which no bundle holds.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, test, type TestContext } from "node:test";
import { build, stop } from "esbuild";
import { type Engine, job, open } from "../src/index.ts";
import { migrate } from "../src/stores/postgres/migrate.ts";
import { environment, installPackage } from "./support/installed-package.ts";
import { freshDatabase, withClient } from "./support/postgres.ts";
import { codeOf } from "./support/source-text.ts";

const FORMATS = ["esm", "cjs"] as const;
type Format = (typeof FORMATS)[number];
type Ended = { readonly code: number; readonly facts: readonly Record<string, unknown>[]; readonly stderr: string };

const CLIENT = `
  import { connect, job } from "outlive/client";
  const hello = job("hello");
  async function main() {
    const client = await connect(process.argv[2], { jobs: [hello] });
    const { id } = await client.enqueue(hello, { n: 1 });
    const { state } = await client.get(id);
    console.log(JSON.stringify({ fact: "enqueued", id, state }));
    await client.close();
  }
  void main();`;

/** Ends when its job has run, or when it is refused. `how` is how it gets its engine. */
const worker = (how: "open" | "attach"): string => `
  import { ${how}, job } from "outlive";
  const tell = (fact, data) => console.log(JSON.stringify({ fact, ...data }));
  const hello = job("hello");
  async function main() {
    const ran = Promise.withResolvers();
    hello.handle((input, run) => {
      tell("ran", { id: run.id });
      ran.resolve();
    });
    const engine = await ${how}(process.argv[2], { jobs: [hello], logger: false });
    tell("opened");
    try {
      await engine.start();
      tell("started");
      await ran.promise;
    } finally {
      await engine.close();
    }
  }
  main().catch(({ code, message }) => {
    tell("refused", { code, message });
    process.exitCode = 1;
  });`;

const IN_MEMORY = `
  import { job, open } from "outlive";
  const hello = job("hello");
  async function main() {
    hello.handle((input, run) => console.log(JSON.stringify({ fact: "ran", id: run.id })));
    const engine = await open("sqlite::memory:", { jobs: [hello], logger: false });
    await engine.enqueue(hello, null);
    await engine.runUntilIdle();
    await engine.close();
  }
  void main();`;

const REFUSED =
  /^Outlive was bundled into this program, and a bundle lacks the files .*\. Mark `outlive` as external .*`outlive\/client`\.$/;

let temporary: string;
let project: string;
let bundleCount = 0;

before(async () => {
  temporary = await realpath(await mkdtemp(join(tmpdir(), "outlive-bundlers-")));
  const installed = await installPackage(temporary);
  project = installed.project;
  await installed.install("pg");
});

after(async () => {
  await stop();
  await rm(temporary, { recursive: true, force: true });
});

interface Bundle {
  readonly file: string;
  readonly folder: string;
  /** The files of the package and of its dependencies that went into it. */
  readonly inputs: readonly string[];
}

/** In a folder of its own inside the project, so that it finds what is external. */
async function bundle(program: string, format: Format, external: readonly string[] = []): Promise<Bundle> {
  const folder = join(project, `bundle-${++bundleCount}`);
  await mkdir(folder);
  const file = join(folder, format === "esm" ? "program.mjs" : "program.cjs");
  const { metafile } = await build({
    stdin: { contents: program, resolveDir: project },
    absWorkingDir: project,
    outfile: file,
    bundle: true,
    platform: "node",
    target: "node24",
    format,
    external: ["pg", ...external],
    metafile: true,
    // In CommonJS it warns that there is no `import.meta`.
    logLevel: "error",
  });
  return { file, folder, inputs: Object.keys(metafile.inputs).map((path) => resolve(project, path)) };
}

function runs(file: string, ...args: string[]): Promise<Ended> {
  return new Promise((done) => {
    execFile(process.execPath, [file, ...args], { cwd: project, env: environment() }, (error, stdout, stderr) => {
      const facts = stdout.split("\n").filter(Boolean);
      const code = error === null ? 0 : Number(error.code ?? -1);
      done({ code, facts: facts.map((line) => JSON.parse(line) as Record<string, unknown>), stderr });
    });
  });
}

const hello = job("hello");
const stores = {
  SQLite: async (t: TestContext): Promise<string> => {
    const folder = await mkdtemp(join(temporary, "store-"));
    t.after(() => rm(folder, { recursive: true, force: true }));
    return `sqlite:${join(folder, "jobs.db")}`;
  },
  PostgreSQL: async (t: TestContext): Promise<string> => {
    const url = await freshDatabase(t);
    await withClient(url, (client) => migrate(client, "outlive"));
    return url;
  },
};

async function engineOn(t: TestContext, url: string): Promise<Engine> {
  const engine = await open(url, { jobs: [hello], logger: false });
  t.after(() => engine.close());
  return engine;
}

for (const [store, fresh] of Object.entries(stores)) {
  for (const format of FORMATS) {
    test(`a web process that bundles outlive/client (${format}) enqueues on ${store}`, async (t) => {
      const url = await fresh(t);
      const { file } = await bundle(CLIENT, format);
      // The first one on a SQLite file creates it.
      for (const nth of ["first", "second"]) {
        const { code, facts, stderr } = await runs(file, url);
        assert.deepEqual([code, facts[0]?.["state"], stderr], [0, "queued", ""], `${nth}: ${stderr}`);
        const engine = await engineOn(t, url);
        assert.equal((await engine.get(String(facts[0]!["id"])))?.state, "queued");
      }
    });

    for (const how of ["open", "attach"] as const)
      test(`a worker that is bundled whole (${format}, ${how}) is refused on ${store} before it claims a job`, async (t) => {
        const url = await fresh(t);
        const engine = await engineOn(t, url);
        const { id } = await engine.enqueue(hello, null);
        const { file, folder } = await bundle(worker(how), format);
        // Files of the program that happen to have the names of ours.
        const mistaken = join(folder, "mistaken");
        for (const name of ["maintenance-thread.js", "child.js"])
          await writeFile(join(folder, name), `require("node:fs").writeFileSync(${JSON.stringify(mistaken)}, "");`);
        const { code, facts, stderr } = await runs(file, url);
        assert.deepEqual(
          [code, facts.map(({ fact }) => fact), stderr],
          // A program that attaches to a store may only read it.
          [1, how === "open" ? ["refused"] : ["opened", "refused"], ""],
        );
        const refused = facts.at(-1)!;
        assert.equal(refused["code"], "OPTION_INVALID");
        assert.match(String(refused["message"]), REFUSED);
        const seen = await engine.get(id);
        assert.deepEqual([seen?.state, seen?.attempt], ["queued", 0]);
        assert.deepEqual(await engine.workers(), []);
        assert.equal(existsSync(mistaken), false);
      });
  }

  test(`a worker that is bundled with outlive as external runs its jobs on ${store}`, async (t) => {
    const url = await fresh(t);
    const engine = await engineOn(t, url);
    const { id } = await engine.enqueue(hello, null);
    const { file } = await bundle(worker("open"), "esm", ["outlive"]);
    const { code, facts, stderr } = await runs(file, url);
    assert.deepEqual(
      [code, new Set(facts.map(({ fact }) => fact)), stderr],
      [0, new Set(["opened", "started", "ran"]), ""],
    );
    assert.equal((await engine.get(id))?.state, "succeeded");
  });
}

test("a bundled program may run jobs in memory, which needs no thread", async () => {
  for (const format of FORMATS) {
    const { code, facts, stderr } = await runs((await bundle(IN_MEMORY, format)).file);
    assert.deepEqual([code, facts.map(({ fact }) => fact), stderr], [0, ["ran"], ""]);
  }
});

test("no file that goes into a bundle names another by `new URL`, which webpack resolves when it builds", async () => {
  const inputs = new Set([...(await bundle(CLIENT, "esm")).inputs, ...(await bundle(worker("open"), "esm")).inputs]);
  const ours = [...inputs].filter((path) => path.includes("/outlive/dist/"));
  for (const entry of ["client.js", "index.js"])
    assert.ok(
      ours.some((path) => path.endsWith(`/dist/${entry}`)),
      entry,
    );
  const offences: string[] = [];
  for (const path of ours)
    if (/new URL\([^;]*,\s*import\.meta\.url\)/.test(codeOf(await readFile(path, "utf8")))) offences.push(path);
  assert.deepEqual(offences, []);
});
