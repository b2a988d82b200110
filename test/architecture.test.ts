// Holds the shape of the source tree: who may import whom, what core may not call, how files are named and opened, and the
// map of exports. Every rule is a function of one file's path and text, and is tried on texts that break it, so that it can fail.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { posix } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Script } from "node:vm";
import { codeOf, importsOf } from "./support/source-text.ts";

type File = readonly [path: string, text: string];
type Rule = {
  readonly title: string;
  /** One sentence for every offence; none when the file keeps the rule. */
  readonly offences: (path: string, text: string) => string[];
  readonly breaks: readonly File[];
  readonly keeps: readonly File[];
};

const root = fileURLToPath(new URL("../", import.meta.url));
const manifest = JSON.parse(readFileSync(`${root}package.json`, "utf8")) as {
  exports: Record<string, string | { types: string; default: string }>;
  dependencies?: Record<string, string>;
  peerDependencies?: Record<string, string>;
};

const sqliteFile = "src/stores/sqlite/database.ts";
const pgFile = "src/stores/postgres/driver.ts";
const promClientFile = "src/telemetry/prom-client.ts";
const doctor = "src/stores/sqlite/doctor/";
const settingsFile = "src/engine/settings.ts";
// Files directly in src are the engine. A folder may import itself and what is listed here.
const parts = ["batches", "requests", "collections", "stores", "blobs", "brokers", "telemetry"];
const mayImport: Readonly<Record<string, readonly string[]>> = {
  cli: ["engine", "settings", "core", "demo", "torture"],
  // A user of the engine like any other, which the command line runs.
  torture: ["engine", "core"],
  // Shows a run of torture.
  demo: ["engine", "core", "torture"],
  dashboard: ["engine", "core"],
  testing: ["engine", "platform", "core"],
  engine: [...parts, "settings", "platform", "core"],
  ...Object.fromEntries(parts.map((part) => [part, ["settings", "platform", "core"]])),
  // The tables of settings, where stores find their defaults, too.
  settings: ["core"],
  // The real clock, randomness and identity behind core's ports.
  platform: ["core"],
  core: [],
};

const rules: readonly Rule[] = [
  {
    title: "folders import only what the map allows: faces, then the engine, then its parts, then core",
    offences(path, text) {
      const from = folderOf(path);
      const allowed = mayImport[from];
      if (allowed === undefined) return [`${path} is in a folder that is not on the map`];
      return relativeImports(path, text).flatMap((target) => {
        if (!target.startsWith("src/")) return [`${path} imports ${target}, which is not in src`];
        const to = folderOf(target);
        if (to !== from && !allowed.includes(to)) return [`${path} (${from}) imports ${target} (${to})`];
        const stores = new Set([storeOf(path) ?? storeOf(target), storeOf(target) ?? storeOf(path)]);
        return from === "stores" && stores.size > 1 ? [`${path} imports another store, ${target}`] : [];
      });
    },
    breaks: [
      ["src/core/job.ts", 'import { open } from "../engine.ts";'],
      ["src/core/job.ts", 'export type { Row } from "../stores/sqlite/rows.ts";'],
      ["src/core/run.ts", 'const sqlite = await import("../stores/sqlite/index.ts");'],
      ["src/core/run.ts", 'new Worker(new URL("../stores/sqlite/thread.ts", import.meta.url));'],
      ["src/stores/sqlite/claim.ts", 'import { parse } from "../../engine/options.ts";'],
      ["src/stores/sqlite/claim.ts", 'import "../postgres/claim.ts";'],
      ["src/batches/block.ts", 'import { put } from "../blobs/blob.ts";'],
      ["src/engine.ts", 'import { print } from "./cli/print.ts";'],
      ["src/engine.ts", 'export * from "./testing/index.ts";'],
      ["src/dashboard/page.ts", 'import {\n  claim,\n} from "../stores/sqlite/claim.ts";'],
      ["src/core/job.ts", 'import { sleep } from "../../test/support/sleep.ts";'],
      ["src/torture/tables.ts", 'import { sqlite } from "../stores/sqlite/index.ts";'],
      ["src/torture/run.ts", 'import { paint } from "../demo/ink.ts";'],
      ["src/torture/run.ts", 'import { PostgresServer } from "../../proof/servers/postgres-server.ts";'],
      ["src/engine.ts", 'import { demo } from "./demo/main.ts";'],
      ["src/engine/settings.ts", 'import { isPostgres } from "../backends.ts";'],
      ["src/core/kind.ts", 'import { KIND_OPTIONS } from "../engine/settings.ts";'],
      ["src/misc/odd.ts", "export const odd = 1;"],
    ],
    keeps: [
      ["src/core/job.ts", 'import { fail } from "./errors.ts"; // import "../engine.ts"'],
      ["src/core/job.ts", "const hint = 'import { open } from \"../engine.ts\"';"],
      ["src/engine.ts", 'import { claim } from "./stores/sqlite/claim.ts";\nimport { job } from "./core/job.ts";'],
      ["src/stores/sqlite/claim.ts", 'import type { Store } from "../../core/store.ts";\nimport "./rows.ts";'],
      ["src/stores/sqlite/salvage.ts", 'import { KIND_DEFAULTS } from "../../engine/settings.ts";'],
      ["src/cli/main.ts", 'import { open } from "../engine.ts";'],
      ["src/torture/tables.ts", 'import { sqlite } from "../sqlite.ts";'],
      ["src/demo/main.ts", 'import { run } from "../torture/run.ts";'],
    ],
  },
  {
    title: `files outside ${doctor} import its index.ts only, and only its child process loads what it salvages with`,
    offences: (path, text) =>
      importsOf(text)
        .filter(({ specifier }) => specifier.startsWith("."))
        .map(({ specifier, typeOnly }) => ({ target: posix.join(posix.dirname(path), specifier), typeOnly }))
        .filter(({ target }) => target.startsWith(doctor))
        .filter(({ target, typeOnly }) => {
          if (!path.startsWith(doctor)) return target !== `${doctor}index.ts`;
          if (typeOnly || path.startsWith(`${doctor}salvage/`)) return false;
          return (
            target === `${doctor}child.ts` || (path !== `${doctor}child.ts` && target.startsWith(`${doctor}salvage/`))
          );
        })
        .map(({ target }) => `${path} imports ${target}`),
    breaks: [
      ["src/doctor.ts", 'import { repairFile } from "./stores/sqlite/doctor/repair.ts";'],
      ["src/stores/sqlite/store.ts", 'import type { Progress } from "./doctor/child.ts";'],
      [`${doctor}repair.ts`, 'import { salvage } from "./salvage/salvage.ts";'],
      [`${doctor}index.ts`, 'export { salvage } from "./salvage/salvage.ts";'],
      [`${doctor}run-in-child.ts`, 'import "./child.ts";'],
    ],
    keeps: [
      ["src/doctor.ts", 'import { checkFile } from "./stores/sqlite/doctor/index.ts";'],
      [`${doctor}child.ts`, 'import { salvage } from "./salvage/salvage.ts";\nimport { reindex } from "./repair.ts";'],
      [`${doctor}run-in-child.ts`, 'import type { Task } from "./child.ts";'],
      [
        `${doctor}salvage/write.ts`,
        'import { restoreRules } from "./rules.ts";\nimport { Database } from "../../database.ts";',
      ],
    ],
  },
  {
    title: "core imports nothing but core, except the types of @standard-schema/spec",
    offences: (path, text) =>
      folderOf(path) !== "core"
        ? []
        : importsOf(text)
            .filter(({ specifier }) => !specifier.startsWith("."))
            .filter(({ specifier, typeOnly }) => !(typeOnly && specifier === "@standard-schema/spec"))
            .map(({ specifier }) => `${path} imports ${specifier}`),
    breaks: [
      ["src/core/job.ts", 'import { createHash } from "node:crypto";'],
      ["src/core/job.ts", 'import type { Worker } from "node:worker_threads";'],
      ["src/core/job.ts", 'import { z } from "zod";'],
      ["src/core/job.ts", 'import { type StandardSchemaV1 } from "@standard-schema/spec";'],
      ["src/core/job.ts", 'const fs = process.getBuiltinModule("node:fs");'],
    ],
    keeps: [
      ["src/core/job.ts", 'import type { StandardSchemaV1 } from "@standard-schema/spec";'],
      ["src/core/job.ts", 'import type { Lease } from "./lease.ts";'],
      ["src/engine/config-file.ts", 'import type { Node } from "yaml";'],
    ],
  },
  {
    title: `node:sqlite is imported in ${sqliteFile} and nowhere else`,
    offences: (path, text) =>
      path === sqliteFile || !importsOf(text).some(({ specifier }) => /^(node:)?sqlite$/.test(specifier))
        ? []
        : [`${path} imports node:sqlite`],
    breaks: [
      ["src/stores/sqlite/claim.ts", 'import { DatabaseSync } from "node:sqlite";'],
      ["src/stores/sqlite/claim.ts", 'import type { StatementSync } from "node:sqlite";'],
      ["src/engine.ts", "const { DatabaseSync } = await import('node:sqlite');"],
    ],
    keeps: [
      [sqliteFile, 'import { DatabaseSync } from "node:sqlite";'],
      ["src/stores/sqlite/claim.ts", 'import { open } from "./database.ts"; // node:sqlite'],
    ],
  },
  {
    title: `pg is imported in ${pgFile} and nowhere else, and only when it is needed`,
    offences: (path, text) =>
      importsOf(text)
        .filter(({ specifier }) => /^pg(-|\/|$)/.test(specifier))
        .flatMap(({ typeOnly }) => {
          if (path !== pgFile) return [`${path} imports pg`];
          return typeOnly || !/^import\b(?!\s+type)[^;]*["']pg["']/m.test(text) ? [] : [`${path} loads pg at once`];
        }),
    breaks: [
      ["src/stores/postgres/claim.ts", 'import pg from "pg";'],
      ["src/stores/postgres/claim.ts", 'import type { Pool } from "pg";'],
      ["src/stores/postgres/claim.ts", 'import Pool from "pg-pool";'],
      ["src/engine.ts", 'const pg = await import("pg");'],
      [pgFile, 'import pg from "pg";'],
    ],
    keeps: [
      [pgFile, 'import type { Pool } from "pg";\nconst load = async () => await import("pg");'],
      ["src/stores/postgres/claim.ts", 'import { list } from "./connection.ts"; // pg'],
    ],
  },
  {
    title: `prom-client is loaded in ${promClientFile} and nowhere else; others import its types`,
    offences: (path, text) =>
      importsOf(text)
        .filter(({ specifier, typeOnly }) => specifier === "prom-client" && !typeOnly)
        .map(() => `${path} imports prom-client`),
    breaks: [
      ["src/telemetry/metrics.ts", 'import { register } from "prom-client";'],
      ["src/telemetry/metrics.ts", 'import { register, type Registry } from "prom-client";'],
      ["src/cli/commands/metrics.ts", 'const { Registry } = await import("prom-client");'],
    ],
    keeps: [["src/telemetry/metrics.ts", 'import type { Registry } from "prom-client";']],
  },
  {
    title: "core has no clock, randomness, identity, timer, process or console of its own",
    offences: (path, text) => (folderOf(path) === "core" ? bannedCalls(path, codeOf(text)) : []),
    breaks: [
      ["src/core/clock.ts", "const now = Date.now();"],
      ["src/core/clock.ts", "const now = Date\n  .now;"],
      ["src/core/clock.ts", "const now = new Date();"],
      ["src/core/clock.ts", "const now = new Date;"],
      ["src/core/clock.ts", "const now = +new Date( );"],
      ["src/core/clock.ts", "const now = Date();"],
      ["src/core/clock.ts", "const text = `it is ${`${Date.now()}`} now`;"],
      ["src/core/retry.ts", "const jitter = Math.random();"],
      ["src/core/run.ts", "setTimeout(abort, 10);"],
      ["src/core/run.ts", "const timer = globalThis.setInterval(beat, 10);"],
      ["src/core/run.ts", "setImmediate(beat);"],
      ["src/core/run.ts", "queueMicrotask(beat);"],
      ["src/core/run.ts", "const signal = AbortSignal.timeout(10);"],
      ["src/core/enqueue.ts", "const id = crypto.randomUUID();"],
      ["src/core/enqueue.ts", "crypto.getRandomValues(bytes);"],
      ["src/core/lease.ts", "const at = performance.now();"],
      ["src/core/worker.ts", "const { pid } = process;"],
      ["src/core/worker.ts", 'process.on("exit", stop);'],
      ["src/core/worker.ts", "globalThis.process.exit();"],
      ["src/core/events.ts", 'console.warn("late");'],
    ],
    keeps: [
      ["src/core/clock.ts", "// Date.now() is the caller's\nconst at = new Date(ms).toISOString();"],
      ["src/core/clock.ts", 'const at = new Date("2026-01-01");\nconst hint = "Math.random()";'],
      [
        "src/core/worker.ts",
        "const title = `a process: ${worker.process}`;\nconst quote = /\"/; const other = 'console.log()';",
      ],
      ["src/core/run.ts", "clock.after(10, abort);\nif (value instanceof Date) stop();"],
      ["src/engine.ts", "const now = Date.now();"],
    ],
  },
  {
    title: "files and folders are kebab-case and named after what they own, never utils, helpers, types or manager",
    offences: (path) =>
      path
        .replace(/\.ts$/, "")
        .split("/")
        .flatMap((name) => {
          if (!/^[a-z0-9]+(-[a-z0-9]+)*$/.test(name)) return [`${path}: "${name}" is not kebab-case`];
          if (/(^|-)(utils?|helpers?|types|managers?)$/.test(name)) return [`${path}: "${name}" names no thing`];
          return [];
        }),
    breaks: [
      ["src/utils.ts", ""],
      ["src/core/helpers.ts", ""],
      ["src/core/types.ts", ""],
      ["src/stores/sqlite/lock-manager.ts", ""],
      ["src/core/util/time.ts", ""],
      ["src/core/jobState.ts", ""],
      ["src/core/job.js", ""],
    ],
    keeps: [
      ["src/core/job.ts", ""],
      ["src/stores/sqlite/lock-file.ts", ""],
    ],
  },
  {
    title: "every file opens with a comment that says what it owns",
    offences(path, text) {
      const opening = /^(?:#!.*\n)?((?:\/\/.*\n?)+|\/\*[^]*?\*\/)/.exec(text)?.[1] ?? "";
      const words = opening.replace(/^\s*\/\/\s*(oxlint|eslint|@ts)-.*$/gm, "").match(/\p{L}{2,}/gu) ?? [];
      return words.length >= 4 ? [] : [`${path} does not open with a comment of what it owns`];
    },
    breaks: [
      ["src/core/job.ts", "export const job = 1;"],
      ["src/core/job.ts", "\n\nimport './lease.ts';\n// Owns the job and its states.\n"],
      ["src/core/job.ts", "// oxlint-disable-next-line no-console -- because it is needed\nexport const job = 1;"],
      ["src/core/job.ts", "// job\nexport const job = 1;"],
    ],
    keeps: [
      ["src/core/job.ts", "// Owns the job and its states.\nexport const job = 1;"],
      ["src/cli/main.ts", "#!/usr/bin/env node\n/* Owns the command line of Outlive. */\n"],
    ],
  },
  {
    title: "no module awaits at its top level, so that CommonJS can require it",
    offences: (path, text) => topLevelAwait(path, text),
    breaks: [
      ["src/engine.ts", "export const store = await open();"],
      ["src/engine.ts", 'import { open } from "./open.ts";\nif (ready) {\n  await open();\n}'],
      ["src/engine.ts", "await (first ?? second);"],
      ["src/engine.ts", "for await (const row of rows) use(row);"],
      ["src/engine.ts", "await using engine = open();"],
    ],
    keeps: [
      ["src/engine.ts", "export const load = async (): Promise<void> => await open();"],
      [
        "src/engine.ts",
        'import x, { type Y } from "./x.ts";\nexport * from "./z.ts";\nexport { x as default, type Y };\nexport async function* all(this: Y) {\n' +
          "  for await (const row of x(import.meta.url)) yield `${await row} await`; // await\n}\nexport class A { async b() { await x; } }",
      ],
    ],
  },
  {
    title: "relative imports end in .ts, and packages are dependencies of what is published",
    offences: (path, text) =>
      importsOf(text).flatMap(({ specifier }) => {
        if (specifier.startsWith(".")) {
          return /\.(ts|json)$/.test(specifier) ? [] : [`${path} imports ${specifier} without .ts`];
        }
        const name = specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
        const published = { ...manifest.dependencies, ...manifest.peerDependencies };
        return specifier.startsWith("node:") || name in published ? [] : [`${path} imports ${name}, not a dependency`];
      }),
    breaks: [
      ["src/engine.ts", 'import { job } from "./core/job";'],
      ["src/engine.ts", 'import { job } from "./core/job.js";'],
      ["src/engine.ts", 'import ts from "typescript";'],
      ["src/engine.ts", 'import { readFileSync } from "fs";'],
    ],
    keeps: [["src/engine.ts", 'import "./core/job.ts";\nimport { x } from "yaml/util";\nimport "node:fs";']],
  },
];

const files: readonly File[] = sourceFiles();

test("there are source files to hold to the rules, and the one that imports node:sqlite is among them", () => {
  const text = files.find(([path]) => path === sqliteFile)?.[1];
  assert.ok(text !== undefined, `${sqliteFile} exists`);
  assert.ok(importsOf(text).some(({ specifier }) => specifier === "node:sqlite"));
});

for (const rule of rules) {
  test(rule.title, () => {
    assert.deepEqual(
      files.flatMap(([path, text]) => rule.offences(path, text)),
      [],
    );
  });
  test(`an offence is noticed, and nothing else is, by the rule: ${rule.title}`, () => {
    for (const [path, text] of rule.breaks) assert.notDeepEqual(rule.offences(path, text), [], `${path}:\n${text}`);
    for (const [path, text] of rule.keeps) assert.deepEqual(rule.offences(path, text), [], `${path}:\n${text}`);
  });
}

test("a program that imports the engine loads no store before it opens one: every worker waits for what is loaded at its start", () => {
  const listed = `
    import { registerHooks } from "node:module";
    registerHooks({ resolve: (name, at, next) => { const found = next(name, at); console.log(found.url); return found; } });
    await import(${JSON.stringify(new URL("../src/index.ts", import.meta.url))});`;
  const loaded = execFileSync(process.execPath, ["--input-type=module", "--eval", listed], { encoding: "utf8" });
  assert.match(loaded, /\/src\/engine\.ts\n/);
  assert.deepEqual(loaded.match(/.*\/src\/stores\/.*\/(store|database|driver)\.ts|.*\/node_modules\/.*/g), null);
});

test("the exports map has no wildcard, and each target is built from a source file", () => {
  assert.deepEqual(exportOffences(manifest.exports), []);
});

test("a wildcard, a target without a source and a type that is not its target's are noticed in an exports map", () => {
  const good = { types: "./dist/index.d.ts", default: "./dist/index.js" };
  assert.equal(exportOffences({ "./core/*": "./dist/core/*.js" }).length, 1);
  assert.equal(exportOffences({ "./x": { types: "./dist/nowhere.d.ts", default: "./dist/nowhere.js" } }).length, 1);
  assert.equal(exportOffences({ ".": { ...good, types: "./dist/client.d.ts" } }).length, 1);
  assert.equal(exportOffences({ ".": "./src/index.ts" }).length, 1);
});

function folderOf(path: string): string {
  if (path === settingsFile) return "settings";
  const [, folder, ...rest] = path.split("/");
  return rest.length === 0 || folder === undefined ? "engine" : folder;
}

/** `sqlite` of src/stores/sqlite/claim.ts; a file directly in src/stores belongs to all of them. */
function storeOf(path: string): string | undefined {
  return /^src\/stores\/([^/]+)\//.exec(path)?.[1];
}

function relativeImports(path: string, text: string): string[] {
  return importsOf(text)
    .filter(({ specifier }) => specifier.startsWith("."))
    .map(({ specifier }) => posix.join(posix.dirname(path), specifier));
}

function bannedCalls(path: string, code: string): string[] {
  const global = String.raw`(?:(?<![\w$.])|\bglobalThis\s*\??\.\s*)`;
  const banned: Readonly<Record<string, RegExp>> = {
    "Date.now": /\bDate\s*\??\.\s*now\b/,
    "new Date() without an argument": /\bnew\s+Date\b(?!\s*[\w$.])(?!\s*\(\s*[^)\s])/,
    "Date()": /(?<![\w$.]|\bnew\s+)Date\s*\(/,
    "Temporal.Now": /\bTemporal\s*\.\s*Now\b/,
    "Math.random": /\bMath\s*\??\.\s*random\b/,
    "a timer": new RegExp(`${global}(?:setTimeout|setInterval|setImmediate|queueMicrotask)\\b`),
    "AbortSignal.timeout": /\bAbortSignal\s*\.\s*timeout\b/,
    randomUUID: /\brandomUUID\b/,
    getRandomValues: /\bgetRandomValues\b/,
    "performance.now": /\bperformance\s*\??\.\s*now\b/,
    process: new RegExp(`${global}process\\s*(?:\\??\\.|[[;,)])`),
    console: new RegExp(`${global}console\\s*(?:\\??\\.|[[;,)])`),
  };
  return Object.entries(banned)
    .filter(([, pattern]) => pattern.test(code))
    .map(([name]) => `${path} uses ${name}`);
}

// Node's own parser decides: a class's static block may hold any statement of a module except an await. What only a module may
// hold (imports, exports, import.meta) is taken out first.
function topLevelAwait(path: string, text: string): string[] {
  const code = codeOf(stripTypeScriptTypes(text.replace(/^#!.*/, "")))
    .replace(/\bimport\b(?!\s*[.(])[^;"']*(["'])\s*\1(\s*with\s*\{[^}]*\})?/g, "")
    .replace(/\bexport\s*(\*[^;"']*|\{[^}]*\}\s*(?=from\b|;|\n|$))(from\s*(["'])\s*\3)?/g, "")
    .replace(/\bexport\s+default\b/g, "void ")
    .replace(/\bexport\b/g, "")
    .replace(/\bimport\s*\.\s*meta\b/g, "importMeta");
  try {
    new Script(`class Module { static {\n${code}\n} }`, { filename: path, lineOffset: -1 });
    return [];
  } catch (error) {
    return [`${path}: ${String(error)}`];
  }
}

function exportOffences(exports: typeof manifest.exports): string[] {
  return Object.entries(exports).flatMap(([name, target]) => {
    if (name === "./package.json") return [];
    if (JSON.stringify([name, target]).includes("*")) return [`${name} has a wildcard`];
    if (typeof target === "string") return [`${name} has no types`];
    const source = target.default.replace("./dist/", "src/").replace(/\.js$/, ".ts");
    if (target.types !== target.default.replace(/\.js$/, ".d.ts")) return [`${name} has the types of another file`];
    return existsSync(root + source) ? [] : [`${name} has no source ${source}`];
  });
}

function sourceFiles(): File[] {
  return readdirSync(`${root}src`, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`.slice(root.length).replaceAll("\\", "/"))
    .sort()
    .map((path) => [path, readFileSync(root + path, "utf8")]);
}
