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
const redisFile = "src/stores/redis/driver.ts";
const ioredisFile = "src/stores/redis/ioredis.ts";
/** The one thing that a store lends to another: liveness in Redis of a PostgreSQL store. */
const pulseFile = "src/stores/redis/pulse.ts";
const promClientFile = "src/telemetry/metrics.ts";
/** The peers of blobs and files, each with the one file that loads it. */
const peerFiles: Readonly<Record<string, string>> = {
  "@aws-sdk/client-s3": "src/blobs/s3.ts",
  "@azure/storage-blob": "src/blobs/azure.ts",
  "csv-parse": "src/files/csv.ts",
  undici: "src/requests/connections.ts",
  amqplib: "src/brokers/rabbitmq/connection.ts",
  "@opentelemetry/api": "src/telemetry/otel.ts",
};
const doctor = "src/stores/sqlite/doctor/";
const settingsFile = "src/engine/settings.ts";
/** The tables of settings: plain data. */
const settingsFiles = [settingsFile, "src/engine/kind-options.ts"];
const registryFile = "src/stores/registry.ts";
const threadFiles = ["src/recovery/maintenance-thread.ts"];
// The domain: it has no clock, timer or randomness of its own, and its rooms may name each other's types. What may import values is listed
// below. The ports are the files directly in src/stores, except the registry and what only the stores themselves share.
const domain = ["job", "ports", "recovery", "worker"];
const ofStores = ["registry", "rows", "released-steps"];
const parts = ["batches", "schedules", "requests", "collections", "stores", "blobs", "files", "brokers", "telemetry"];
const mayImport: Readonly<Record<string, readonly string[]>> = {
  job: [],
  ports: ["job"],
  recovery: ["job", "ports"],
  worker: ["job", "ports", "recovery"],
  // The real clock, randomness and identity behind the ports of the domain.
  platform: ["job", "ports", "recovery"],
  // The maintenance thread of a worker's process: the domain, with a real clock.
  thread: [...domain, "platform"],
  // The tables of settings, where stores find their defaults, too.
  settings: ["job"],
  ...Object.fromEntries(parts.map((part) => [part, [...domain, "settings", "platform", "thread"]])),
  registry: [...domain, "settings", "stores"],
  engine: [...domain, ...parts, "registry", "settings", "platform", "thread"],
  // The entry points, directly in src: lists of names.
  entry: [...domain, ...parts, "engine", "platform"],
  // A user of the engine like any other, which the command line runs.
  torture: ["entry", "engine", "registry", "platform"],
  // Shows a run of torture.
  demo: ["entry", "torture"],
  cli: ["entry", "engine", "registry", "settings", "telemetry", "platform", ...domain, "demo", "torture"],
  dashboard: ["entry", "engine", ...domain],
  testing: ["entry", "engine", "registry", "platform", ...domain],
};

const rules: readonly Rule[] = [
  {
    title: "rooms import only what the map allows: faces, then the engine, then its parts, then the domain",
    offences(path, text) {
      const from = roomOf(path);
      const allowed = mayImport[from];
      if (allowed === undefined) return [`${path} is in a folder that is not on the map`];
      return relativeImports(path, text).flatMap(({ target, typeOnly }) => {
        if (!target.startsWith("src/")) return [`${path} imports ${target}, which is not in src`];
        const to = roomOf(target);
        const namesType =
          typeOnly && ((domain.includes(from) && domain.includes(to)) || (from === "registry" && to === "engine"));
        if (to !== from && !allowed.includes(to) && !namesType) return [`${path} (${from}) imports ${target} (${to})`];
        const stores = new Set([storeOf(path) ?? storeOf(target), storeOf(target) ?? storeOf(path)]);
        if (target === pulseFile) return [];
        return from === "stores" && stores.size > 1 ? [`${path} imports another store, ${target}`] : [];
      });
    },
    breaks: [
      ["src/job/job.ts", 'import { open } from "../engine/open.ts";'],
      ["src/job/job.ts", 'export type { Row } from "../stores/sqlite/rows.ts";'],
      ["src/job/job.ts", 'import { RECOVERY_BATCH } from "../recovery/recover.ts";'],
      ["src/stores/port.ts", 'import { Executor } from "../worker/executor.ts";'],
      ["src/recovery/recover.ts", 'import { Executor } from "../worker/executor.ts";'],
      ["src/recovery/recover.ts", 'import { systemClock } from "../platform/clock.ts";'],
      ["src/worker/attempt.ts", 'const sqlite = await import("../stores/sqlite/index.ts");'],
      ["src/worker/attempt.ts", 'new Worker(new URL("../stores/sqlite/thread.ts", import.meta.url));'],
      ["src/stores/sqlite/claim.ts", 'import { parse } from "../../engine/options.ts";'],
      ["src/stores/sqlite/claim.ts", 'import "../postgres/claim.ts";'],
      ["src/stores/registry.ts", 'import { engineSettings } from "../engine/options.ts";'],
      ["src/batches/block.ts", 'import { put } from "../blobs/blob.ts";'],
      ["src/engine/engine.ts", 'import { print } from "../cli/print.ts";'],
      ["src/engine/engine.ts", 'export * from "../testing/index.ts";'],
      ["src/dashboard/page.ts", 'import {\n  claim,\n} from "../stores/sqlite/claim.ts";'],
      ["src/job/job.ts", 'import { sleep } from "../../test/support/sleep.ts";'],
      ["src/torture/tables.ts", 'import { sqlite } from "../stores/sqlite/index.ts";'],
      ["src/torture/run.ts", 'import { paint } from "../demo/ink.ts";'],
      ["src/torture/run.ts", 'import { PostgresServer } from "../../proof/servers/postgres-server.ts";'],
      ["src/engine/engine.ts", 'import { demo } from "../demo/main.ts";'],
      ["src/engine/settings.ts", 'import { storeAt } from "../stores/registry.ts";'],
      ["src/job/contract.ts", 'import { KIND_OPTIONS } from "../engine/kind-options.ts";'],
      ["src/misc/odd.ts", "export const odd = 1;"],
    ],
    keeps: [
      ["src/job/job.ts", 'import { fail } from "./errors.ts"; // import "../engine.ts"'],
      ["src/job/job.ts", "const hint = 'import { open } from \"../engine.ts\"';"],
      ["src/job/events.ts", 'import type { Loss } from "../recovery/losses.ts";'],
      [
        "src/engine/engine.ts",
        'import { claim } from "../stores/sqlite/claim.ts";\nimport { job } from "../job/job.ts";',
      ],
      ["src/stores/sqlite/claim.ts", 'import type { Store } from "../port.ts";\nimport "./rows.ts";'],
      ["src/stores/sqlite/salvage.ts", 'import { KIND_DEFAULTS } from "../../engine/kind-options.ts";'],
      ["src/stores/registry.ts", 'import type { EngineOptions } from "../engine/options.ts";'],
      ["src/cli/main.ts", 'import { open } from "../engine/open.ts";'],
      ["src/torture/tables.ts", 'import { sqlite } from "../sqlite.ts";'],
      ["src/demo/main.ts", 'import { run } from "../torture/run.ts";'],
    ],
  },
  {
    title: `which store it is, is asked in ${registryFile} and nowhere else`,
    offences(path, text) {
      // The table of defaults has a column for each store, and each store's own folder and entry point know who they are.
      if (path === registryFile || path === settingsFile || storeOf(path) || roomOf(path) === "entry") return [];
      // A list of tests, one of whose suites has the name of a store.
      if (path === "src/testing/known-bugs.ts") return [];
      const code = text.replaceAll(/^\s*(\/\/|\*|\/\*).*$/gm, "").replaceAll(/\s\/\/ .*$/gm, "");
      const name = String.raw`["'\x60]((?:sqlite|postgres(?:ql)?|redis)(?:::memory:|:)?)["'\x60]`;
      const asked = [
        ...code.matchAll(new RegExp(String.raw`(?:[!=]==?|\bcase|[?:(]|\breturn)\s*${name}`, "g")),
        ...code.matchAll(new RegExp(String.raw`${name}\s*[!=]==?`, "g")),
        ...code.matchAll(/\/\^(sqlite|postgres|redis)/g),
      ];
      const imported = relativeImports(path, text).filter(({ target, typeOnly }) => !typeOnly && storeOf(target));
      return [
        ...asked.map(([, what]) => `${path} asks for ${what}`),
        ...imported.map(({ target }) => `${path} imports ${target}`),
      ];
    },
    breaks: [
      ["src/engine/open.ts", 'if (storeAt(url).name !== "sqlite") return viaEngine(url);'],
      ["src/cli/commands/work.ts", 'if (store === "sqlite::memory:") throw refused;'],
      ["src/engine/config.ts", 'const name = url.startsWith("sqlite:") ? a : b;'],
      ["src/cli/commands/demo.ts", "const isServer = /^postgres(ql)?:/.test(url);"],
      ["src/demo/main.ts", "const title = url === null ? 'sqlite' : 'postgres';"],
      ["src/worker/run-host.ts", 'switch (store.name) { case "postgres": break; }'],
      ["src/cli/commands/status.ts", 'if (store.name === "redis") return memory;'],
      ["src/engine/migrations.ts", 'const { migrate } = await import("../stores/postgres/migrate.ts");'],
      ["src/torture/scratch-store.ts", 'import { sqlitePath } from "../stores/sqlite/address.ts";'],
    ],
    keeps: [
      [registryFile, 'const row = { name: "sqlite", open: () => import("./sqlite/open.ts") };'],
      ["src/engine/options.ts", 'import type { PostgresOptions } from "../stores/postgres/address.ts";'],
      ["src/engine/options.ts", "const { pool } = options.postgres ?? {};"],
      ["src/cli/commands/work.ts", 'const hint = "Name a file: --store sqlite:./jobs.db"; // not "sqlite"'],
      ["src/stores/sqlite/store.ts", 'const store = { name: "sqlite" };'],
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
      ["src/engine/open.ts", 'import { repairFile } from "../stores/sqlite/doctor/repair.ts";'],
      ["src/stores/sqlite/store.ts", 'import type { Progress } from "./doctor/child.ts";'],
      [`${doctor}repair.ts`, 'import { salvage } from "./salvage/salvage.ts";'],
      [`${doctor}index.ts`, 'export { salvage } from "./salvage/salvage.ts";'],
      [`${doctor}run-in-child.ts`, 'import "./child.ts";'],
    ],
    keeps: [
      ["src/engine/open.ts", 'import { checkFile } from "../stores/sqlite/doctor/index.ts";'],
      [`${doctor}child.ts`, 'import { salvage } from "./salvage/salvage.ts";\nimport { reindex } from "./repair.ts";'],
      [`${doctor}run-in-child.ts`, 'import type { Task } from "./child.ts";'],
      [
        `${doctor}salvage/write.ts`,
        'import { restoreRules } from "./rules.ts";\nimport { Database } from "../../database.ts";',
      ],
    ],
  },
  {
    title: "the domain imports no package and no module of Node, except the types of @standard-schema/spec",
    offences: (path, text) =>
      !domain.includes(roomOf(path))
        ? []
        : importsOf(text)
            .filter(({ specifier }) => !specifier.startsWith("."))
            .filter(({ specifier, typeOnly }) => !(typeOnly && specifier === "@standard-schema/spec"))
            .map(({ specifier }) => `${path} imports ${specifier}`),
    breaks: [
      ["src/job/job.ts", 'import { createHash } from "node:crypto";'],
      ["src/job/job.ts", 'import type { Worker } from "node:worker_threads";'],
      ["src/job/job.ts", 'import { z } from "zod";'],
      ["src/job/job.ts", 'import { type StandardSchemaV1 } from "@standard-schema/spec";'],
      ["src/job/job.ts", 'const fs = process.getBuiltinModule("node:fs");'],
    ],
    keeps: [
      ["src/job/job.ts", 'import type { StandardSchemaV1 } from "@standard-schema/spec";'],
      ["src/job/job.ts", 'import type { Lease } from "./lease.ts";'],
      ["src/engine/config.ts", 'import type { Node } from "yaml";'],
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
      ["src/engine/engine.ts", "const { DatabaseSync } = await import('node:sqlite');"],
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
      ["src/engine/engine.ts", 'const pg = await import("pg");'],
      [pgFile, 'import pg from "pg";'],
    ],
    keeps: [
      [pgFile, 'import type { Pool } from "pg";\nconst load = async () => await import("pg");'],
      ["src/stores/postgres/claim.ts", 'import { list } from "./statements.ts"; // pg'],
    ],
  },
  {
    title: `@redis/client is imported in ${redisFile} and nowhere else, ioredis and iovalkey in ${ioredisFile}, and only when they are needed`,
    offences: (path, text) =>
      importsOf(text)
        .filter(({ specifier }) => /^(@redis\/|redis$|ioredis|iovalkey)/.test(specifier))
        .flatMap(({ typeOnly, specifier }) => {
          if (path !== (specifier === "@redis/client" ? redisFile : ioredisFile))
            return [`${path} imports ${specifier}`];
          const isLoaded = /^import\b(?!\s+type)[^;]*["'](@redis\/client|ioredis|iovalkey)["']/m.test(text);
          return typeOnly || !isLoaded ? [] : [`${path} loads ${specifier} at once`];
        }),
    breaks: [
      ["src/stores/redis/connection.ts", 'import { createClient } from "@redis/client";'],
      ["src/engine/engine.ts", 'const redis = await import("ioredis");'],
      [redisFile, 'import { createClient } from "@redis/client";'],
      [redisFile, 'const load = async () => await import("ioredis");'],
      [ioredisFile, 'import { Redis } from "ioredis";'],
    ],
    keeps: [
      [
        redisFile,
        'import type * as client from "@redis/client";\nconst load = async () => await import("@redis/client");',
      ],
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
    title: "the peers of blobs, files and requests are imported in one file each, and loaded only when they are needed",
    offences: (path, text) =>
      importsOf(text)
        .filter(({ specifier }) => /^(@aws-sdk|@smithy|@azure|csv-parse|undici)(\/|$)/.test(specifier))
        .flatMap(({ specifier, typeOnly }) => {
          if (path !== peerFiles[specifier]) return [`${path} imports ${specifier}`];
          const atOnce = new RegExp(`^import\\b(?!\\s+type)[^;]*["']${specifier}["']`, "m");
          return typeOnly || !atOnce.test(text) ? [] : [`${path} loads ${specifier} at once`];
        }),
    breaks: [
      ["src/blobs/open.ts", 'import type { S3Client } from "@aws-sdk/client-s3";'],
      ["src/blobs/azure.ts", 'const s3 = await import("@aws-sdk/client-s3");'],
      ["src/blobs/azure.ts", 'import { ContainerClient } from "@azure/storage-blob";'],
      ["src/blobs/azure.ts", 'import { DefaultAzureCredential } from "@azure/identity";'],
      ["src/files/csv.ts", 'import { parse } from "csv-parse";'],
      ["src/files/ndjson.ts", 'import { parse } from "csv-parse/sync";'],
      ["src/requests/sender.ts", 'import type { Dispatcher } from "undici";'],
    ],
    keeps: [
      [
        "src/files/csv.ts",
        'import type { Parser } from "csv-parse";\nconst load = async () => await import("csv-parse");',
      ],
      ["src/blobs/s3.ts", 'import type * as Sdk from "@aws-sdk/client-s3";'],
    ],
  },
  {
    title: "the domain has no clock, randomness, identity, timer, process or console of its own",
    offences: (path, text) => (domain.includes(roomOf(path)) ? bannedCalls(path, codeOf(text)) : []),
    breaks: [
      ["src/job/time.ts", "const now = Date.now();"],
      ["src/job/time.ts", "const now = Date\n  .now;"],
      ["src/job/time.ts", "const now = new Date();"],
      ["src/job/time.ts", "const now = new Date;"],
      ["src/job/time.ts", "const now = +new Date( );"],
      ["src/job/time.ts", "const now = Date();"],
      ["src/job/time.ts", "const text = `it is ${`${Date.now()}`} now`;"],
      ["src/job/backoff.ts", "const jitter = Math.random();"],
      ["src/worker/attempt.ts", "setTimeout(abort, 10);"],
      ["src/worker/attempt.ts", "const timer = globalThis.setInterval(beat, 10);"],
      ["src/worker/attempt.ts", "setImmediate(beat);"],
      ["src/worker/attempt.ts", "queueMicrotask(beat);"],
      ["src/worker/attempt.ts", "const signal = AbortSignal.timeout(10);"],
      ["src/job/enqueue.ts", "const id = crypto.randomUUID();"],
      ["src/job/enqueue.ts", "crypto.getRandomValues(bytes);"],
      ["src/job/lease.ts", "const at = performance.now();"],
      ["src/worker/loop.ts", "const { pid } = process;"],
      ["src/worker/loop.ts", 'process.on("exit", stop);'],
      ["src/worker/loop.ts", "globalThis.process.exit();"],
      ["src/recovery/recover.ts", 'console.warn("late");'],
    ],
    keeps: [
      ["src/job/time.ts", "// Date.now() is the caller's\nconst at = new Date(ms).toISOString();"],
      ["src/job/time.ts", 'const at = new Date("2026-01-01");\nconst hint = "Math.random()";'],
      [
        "src/worker/loop.ts",
        "const title = `a process: ${worker.process}`;\nconst quote = /\"/; const other = 'console.log()';",
      ],
      ["src/worker/attempt.ts", "clock.after(10, abort);\nif (value instanceof Date) stop();"],
      ["src/engine/engine.ts", "const now = Date.now();"],
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
      ["src/job/helpers.ts", ""],
      ["src/job/types.ts", ""],
      ["src/stores/sqlite/lock-manager.ts", ""],
      ["src/job/util/time.ts", ""],
      ["src/job/jobState.ts", ""],
      ["src/job/job.js", ""],
    ],
    keeps: [
      ["src/job/job.ts", ""],
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
      ["src/job/job.ts", "export const job = 1;"],
      ["src/job/job.ts", "\n\nimport './lease.ts';\n// Owns the job and its states.\n"],
      ["src/job/job.ts", "// oxlint-disable-next-line no-console -- because it is needed\nexport const job = 1;"],
      ["src/job/job.ts", "// job\nexport const job = 1;"],
    ],
    keeps: [
      ["src/job/job.ts", "// Owns the job and its states.\nexport const job = 1;"],
      ["src/cli/main.ts", "#!/usr/bin/env node\n/* Owns the command line of Outlive. */\n"],
    ],
  },
  {
    title: "no module awaits at its top level, so that CommonJS can require it",
    offences: (path, text) => topLevelAwait(path, text),
    breaks: [
      ["src/engine/engine.ts", "export const store = await open();"],
      ["src/engine/engine.ts", 'import { open } from "./open.ts";\nif (ready) {\n  await open();\n}'],
      ["src/engine/engine.ts", "await (first ?? second);"],
      ["src/engine/engine.ts", "for await (const row of rows) use(row);"],
      ["src/engine/engine.ts", "await using engine = open();"],
    ],
    keeps: [
      ["src/engine/engine.ts", "export const load = async (): Promise<void> => await open();"],
      [
        "src/engine/engine.ts",
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
      ["src/engine/engine.ts", 'import { job } from "../job/job";'],
      ["src/engine/engine.ts", 'import { job } from "../job/job.js";'],
      ["src/engine/engine.ts", 'import ts from "typescript";'],
      ["src/engine/engine.ts", 'import { readFileSync } from "fs";'],
    ],
    keeps: [["src/engine/engine.ts", 'import "../job/job.ts";\nimport { x } from "yaml/util";\nimport "node:fs";']],
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
  assert.match(loaded, /\/src\/engine\/engine\.ts\n/);
  assert.deepEqual(loaded.match(/.*\/src\/stores\/.*\/(store|database|driver)\.ts|.*\/node_modules\/.*/g), null);
});

test("the exports map has no wildcard, and each target is built from a source file", () => {
  assert.deepEqual(exportOffences(manifest.exports), []);
});

test("a wildcard, a target without a source and a type that is not its target's are noticed in an exports map", () => {
  const good = { types: "./dist/index.d.ts", default: "./dist/index.js" };
  assert.equal(exportOffences({ "./job/*": "./dist/job/*.js" }).length, 1);
  assert.equal(exportOffences({ "./x": { types: "./dist/nowhere.d.ts", default: "./dist/nowhere.js" } }).length, 1);
  assert.equal(exportOffences({ ".": { ...good, types: "./dist/client.d.ts" } }).length, 1);
  assert.equal(exportOffences({ ".": "./src/index.ts" }).length, 1);
});

function roomOf(path: string): string {
  if (settingsFiles.includes(path)) return "settings";
  if (threadFiles.includes(path)) return "thread";
  const [, folder, file, ...rest] = path.split("/");
  if (file === undefined || folder === undefined) return "entry";
  if (folder !== "stores" || rest.length > 0) return folder;
  const name = file.replace(/\.ts$/, "");
  return name === "registry" ? name : ofStores.includes(name) ? "stores" : "ports";
}

/** `sqlite` of src/stores/sqlite/claim.ts; a file directly in src/stores belongs to all of them. */
function storeOf(path: string): string | undefined {
  return /^src\/stores\/([^/]+)\//.exec(path)?.[1];
}

function relativeImports(path: string, text: string): { target: string; typeOnly: boolean }[] {
  return importsOf(text)
    .filter(({ specifier }) => specifier.startsWith("."))
    .map(({ specifier, typeOnly }) => ({ target: posix.join(posix.dirname(path), specifier), typeOnly }));
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
