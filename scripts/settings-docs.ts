// Writes what is derived from the tables of src/engine/settings.ts and kind-options.ts for readers: docs/settings.md, and the comments of the option
// types. `npm run settings` writes the files; test/settings.test.ts holds that they are up to date.
import { readFileSync, writeFileSync } from "node:fs";
import { BATCH_OPTIONS, COLLECTION_OPTIONS, KIND_OPTIONS, REQUEST_OPTIONS } from "../src/engine/kind-options.ts";
import { takes } from "../src/engine/option-checks.ts";
import { PROGRAM_OPTIONS, type Setting, SETTINGS, WORKER_OPTIONS } from "../src/engine/settings.ts";

type Rows = Readonly<Record<string, Setting>>;

const ENGINE_OPTIONS: Rows = { ...SETTINGS, ...PROGRAM_OPTIONS };

/** Which interface documents which rows, under which prefix of their keys. */
const INTERFACES: readonly { readonly file: string; readonly name: string; readonly prefix: string; rows: Rows }[] = [
  { file: "src/engine/options.ts", name: "EngineOptions", prefix: "", rows: ENGINE_OPTIONS },
  { file: "src/engine/options.ts", name: "WorkOptions", prefix: "", rows: WORKER_OPTIONS },
  { file: "src/engine/config.ts", name: "OutliveConfig", prefix: "", rows: SETTINGS },
  { file: "src/engine/config.ts", name: "WorkFileOptions", prefix: "work.", rows: SETTINGS },
  { file: "src/engine/options.ts", name: "KindOptions", prefix: "", rows: KIND_OPTIONS },
  { file: "src/engine/batch.ts", name: "BatchOptions", prefix: "", rows: BATCH_OPTIONS },
  { file: "src/engine/request.ts", name: "RequestOptions", prefix: "", rows: REQUEST_OPTIONS },
  { file: "src/engine/request.ts", name: "RequestRetryOptions", prefix: "retry.", rows: REQUEST_OPTIONS },
  { file: "src/engine/collection.ts", name: "CollectionOptions", prefix: "", rows: COLLECTION_OPTIONS },
  { file: "src/engine/options.ts", name: "RetryOptions", prefix: "retry.", rows: KIND_OPTIONS },
  { file: "src/engine/options.ts", name: "BackoffOptions", prefix: "retry.backoff.", rows: KIND_OPTIONS },
  { file: "src/stores/postgres/address.ts", name: "PostgresOptions", prefix: "postgres.", rows: ENGINE_OPTIONS },
  { file: "src/stores/redis/address.ts", name: "RedisOptions", prefix: "redis.", rows: ENGINE_OPTIONS },
];

/** Every file with the text that it should have. */
export function derivedFiles(): readonly { readonly path: string; readonly text: string }[] {
  const sources = new Set(INTERFACES.map(({ file }) => file));
  return [
    { path: "docs/settings.md", text: settingsPage() },
    ...[...sources].map((path) => ({ path, text: withComments(path) })),
  ];
}

function settingsPage(): string {
  return `# Settings

<!-- Made from the tables in src/engine by \`npm run settings\`. -->

${wrapped(
  "Set a setting in a configuration file (`outlive.config.ts` or `outlive.yaml`), in an environment variable, or in the options of `open`. The options that only code can set, and those of `job()`, `batch()`, `request()` and `collection()`, follow at the end.",
)}

## Which source wins

1. **The call**: an option of \`open\` or \`connect\`, or a flag of the command line such as \`--store\`.
2. **The environment**: a variable such as \`OUTLIVE_STORE\`.
3. **The configuration**: the file, or what a program passes to \`open(config)\` or \`connect(config)\`.
4. **The default**.

${wrapped(
  "The same rule holds for `open(config)`, `connect(config)` and every command, so a web process and its workers use the same store. It applies to each setting separately. `npx outlive check` prints every value and its source; `outlive work` prints its store when it starts.",
)}

${wrapped(
  'If a program passes an address, as in `open("sqlite:./jobs.db", options)`, neither the environment nor a configuration file is read.',
)}

## Settings

${sections(SETTINGS)}
## Further options of \`open\`

${wrapped("`connect` takes `jobs` and `postgres.pool` of these.")}

${sections(PROGRAM_OPTIONS)}
## Options of \`engine.work\` and \`engine.start\`

${sections(WORKER_OPTIONS)}
## Options of \`job()\`

${sections(KIND_OPTIONS)}
## Options of \`batch()\`

${wrapped("In addition to the options of `job()` except `input`, `output`, `fair` and `expires`. Those hold for its blocks. [batches.md](batches.md) explains them.")}

${sections(BATCH_OPTIONS)}
## Options of \`request()\`

${wrapped("In addition to `grace` and `retry` of `job()`. [requests.md](requests.md) explains them.")}

${sections(REQUEST_OPTIONS)}
## Options of \`collection()\`

${wrapped("In addition to the options of `job()` except `output`, `limits` and `fair`. Those hold for the job that follows the last part. [collections.md](collections.md) explains them.")}

${sections(COLLECTION_OPTIONS)}`;
}

function sections(rows: Rows): string {
  return Object.entries(rows)
    .map(([key, row]) => {
      const facts = [
        `Takes ${[takes(row), ...(row.limit === undefined ? [] : [row.limit])].join("; ")}`,
        `Default: ${defaultText(row, "`")}`,
        ...(row.env === undefined ? [] : [`Variable: \`${row.env}\``]),
      ];
      return `### \`${key}\`\n\n${wrapped(row.sentence)}\n\n${facts.map((fact) => wrapped(`- ${fact}`, "  ")).join("\n")}\n`;
    })
    .join("\n");
}

function defaultText(row: Setting, quote = ""): string {
  const shown = (value: unknown): string => `${quote}${JSON.stringify(value)}${quote}`;
  const value: unknown = row.default;
  if (value === null) return row.otherwise!;
  if (typeof value !== "object") return shown(value);
  const { sqlite, postgres, redis } = value as { sqlite: unknown; postgres: unknown; redis: unknown };
  return postgres === redis
    ? `${shown(sqlite)} on SQLite, ${shown(postgres)} on PostgreSQL and Redis`
    : `${shown(sqlite)} on SQLite, ${shown(postgres)} on PostgreSQL, ${shown(redis)} on Redis`;
}

/** Lines of at most 120 columns. */
function wrapped(text: string, indent = ""): string {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= 120) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(last === undefined ? word : indent + word);
  }
  return lines.join("\n");
}

/** The file with the comment of every option as the tables have it. */
function withComments(path: string): string {
  const interfaces = new Map(INTERFACES.filter(({ file }) => file === path).map((one) => [one.name, one]));
  const lines: string[] = [];
  let inside: (typeof INTERFACES)[number] | undefined;
  let groups: string[] = [];
  for (const line of read(path).split("\n")) {
    const begins = /^export interface (\w+)/.exec(line);
    if (begins) [inside, groups] = [interfaces.get(begins[1]!), []];
    if (line === "}") inside = undefined;
    const property = /^(\s+)readonly (\w+)\?: (\{$)?/.exec(line);
    const key = property && inside && inside.prefix + [...groups, property[2]].join(".");
    const row = key && inside?.rows[key];
    if (row) {
      if (lines.at(-1)!.trimStart().startsWith("/**")) lines.pop();
      lines.push(`${property[1]}/** ${comment(row)} */`);
    }
    if (property?.[3]) groups.push(property[2]!);
    else if (/^\s+\};$/.test(line)) groups.pop();
    lines.push(line);
  }
  return lines.join("\n");
}

function comment(row: Setting): string {
  const limits = [...limitsOf(row), ...(row.limit === undefined ? [] : [row.limit])];
  const given = row.default === null ? `Default: ${defaultText(row)}` : `Default ${defaultText(row)}`;
  return `${row.sentence} ${[given, ...limits].join("; ")}.`.replaceAll("*/", "*\\/");
}

/** The limits that the option's type does not show. */
function limitsOf(row: Setting): readonly string[] {
  switch (row.type) {
    case "duration":
      return [row.min === undefined ? `at most "${row.max}"` : `from "${row.min}" to "${row.max}"`];
    case "integer":
    case "concurrency":
      return [`from ${row.min} to ${row.max}`];
    case "share":
      return ["from 0 to 1"];
    case "name":
      return [row.form];
    case "listen":
      return [takes(row)];
    default:
      return [];
  }
}

function read(path: string): string {
  return readFileSync(new URL(`../${path}`, import.meta.url), "utf8");
}

if (import.meta.main)
  for (const { path, text } of derivedFiles()) writeFileSync(new URL(`../${path}`, import.meta.url), text);
