// What one runs before the first worker: `outlive init` and `outlive migrate`.
//
// `outlive migrate up|down|list|print`: the tables of a store. Workers never migrate PostgreSQL; a deploy does, once, by this. A SQLite
// file is created here for those who enqueue before the first worker starts.
import type { MigrationInfo } from "../../stores/backend.ts";
import { migrationsOf, printedSql } from "../../stores/registry.ts";
import { type Context, wholeNumber } from "../context.ts";
import type { Register } from "../main.ts";
import { type Cell, type Column, grid } from "../terminal.ts";
import { count, stamp } from "../words.ts";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { CONFIG_FILES } from "../../engine/config.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";

const step = wholeNumber(0, 1_000);

export const migrateCommand: Register = (program, run) => {
  const migrate = program.command("migrate").description("the tables of a store: up, down, list, print");
  migrate
    .command("up")
    .description(
      "create or upgrade the tables, and a SQLite file; safe to repeat, and to run in several processes at once",
    )
    .option("--to <number>", "only up to this migration (PostgreSQL)", step)
    .action(run((context, command) => up(context, command.opts<{ to?: number }>().to)));
  migrate
    .command("down")
    .description("undo the latest migration; refuses while unfinished jobs exist")
    .option("--to <number>", "undo every migration above this one; 0 drops all jobs", step)
    .option("--force", "even if there are unfinished jobs")
    .action(run((context, command) => down(context, command.opts<{ to?: number; force?: boolean }>())));
  migrate
    .command("list")
    .description("all migrations, when each was applied, and its checksum; also of a SQLite file")
    .action(run(list));
  migrate
    .command("print")
    .description("print the SQL, for psql or for reading; connects to no server")
    .option("--from <number>", "from this migration", step, 1)
    .option("--to <number>", "up to this migration", step, 1_000)
    .option("--down", "the SQL that undoes them, latest first")
    .option("--roles", "the SQL of the roles: owner, worker, enqueue-only, read-only")
    .option("--pg-cron", "the schedule that calls outlive.tick(), for pg_cron")
    .action(run((context, command) => print(context, command.opts<PrintFlags>())));
};

async function up({ terminal, config, mayChange }: Context, to: number | undefined): Promise<void> {
  mayChange("migrate the store");
  const { store, engine } = await config();
  const { title, place, ...migrations } = await migrationsOf(store, engine);
  const applied = await migrations.up(to);
  terminal.answer({ ...place, applied }, () =>
    applied.length === 0
      ? `${title} is up to date.`
      : `${title}: ${count(applied.length, "migration")} done (${applied.join(", ")}).`,
  );
}

async function down(context: Context, options: { to?: number; force?: boolean }): Promise<void> {
  const { terminal, config, mayChange } = context;
  mayChange("undo migrations");
  const { store, engine } = await config();
  const { title, place, ...migrations } = await migrationsOf(store, engine);
  const before = await migrations.list();
  const undone = await migrations.down(options);
  const dropped = before.filter(({ number }) => undone.includes(number)).map(({ drops = "" }) => drops);
  terminal.answer({ ...place, undone, dropped }, () =>
    undone.length === 0
      ? `${title}: there is nothing to undo.`
      : [`${title}: ${count(undone.length, "migration")} undone (${undone.join(", ")}). Dropped:`]
          .concat(dropped.toReversed().map((what) => `  ${what}`))
          .join("\n"),
  );
}

async function list({ terminal, config }: Context): Promise<void> {
  const { store, engine } = await config();
  const { place, note, ...migrations } = await migrationsOf(store, engine);
  const all = await migrations.list();
  terminal.answer({ ...place, migrations: all }, () =>
    [
      ...grid(
        terminal,
        COLUMNS,
        all.map((one) => [
          one.number,
          one.name,
          appliedCell(one, note === undefined ? "not yet: outlive migrate up" : "not yet"),
          checksum(one),
        ]),
      ),
      ...(note === undefined ? [] : ["", note]),
    ].join("\n"),
  );
}

function appliedCell({ applied, appliedAt }: MigrationInfo, notYet: string): Cell {
  if (appliedAt !== undefined && appliedAt !== null) return stamp(appliedAt);
  return applied ? "yes" : { text: notYet, ink: "yellow" };
}

const COLUMNS: readonly Column[] = [
  { title: "NUMBER", align: "right" },
  { title: "NAME" },
  { title: "APPLIED" },
  { title: "CHECKSUM" },
];

/** The one that the store keeps, and what is wrong with it. */
function checksum({ applied, checksum: released, storedChecksum: stored }: MigrationInfo): Cell {
  if (!applied) return released;
  if (stored === null) return { text: "not stored yet", ink: "yellow" };
  return stored === released ? stored : { text: `${stored}, not the released ${released}`, ink: "red" };
}

interface PrintFlags {
  readonly from: number;
  readonly to: number;
  readonly down?: boolean;
  readonly roles?: boolean;
  readonly pgCron?: boolean;
}

/** Without a choice the migrations are printed; with --roles or --pg-cron only those. */
async function print({ terminal, config }: Context, flags: PrintFlags): Promise<void> {
  const { engine } = await config();
  const schema = engine.postgres?.schema ?? "outlive";
  const { from, to, down: back = false, roles = false, pgCron = false } = flags;
  const sql = await printedSql(schema, {
    ...(!roles && !pgCron && { migrations: { from, to, direction: back ? "down" : "up" } }),
    roles,
    cron: pgCron,
  });
  terminal.answer({ schema, sql }, () => sql);
}

// `outlive init`: a configuration and a first job that runs. It never overwrites a file.

const configText = (extension: string): string => `import { defineConfig } from "outlive";

export default defineConfig({
  store: "sqlite:./outlive.db",
  jobs: "jobs/**/*.${extension}",
});
`;

const JOB = `import { job } from "outlive";

// The contract: import it wherever you enqueue. Any Standard Schema (zod, valibot, arktype) can go into \`input\`.
export const hello = job<{ name: string }>("hello", { timeout: "5m" });

// The handler runs in workers: outlive work
hello.handle(async (input, run) => {
  // A step runs once. Kill the worker here, and the next attempt continues after the last finished step.
  const greeting = await run.step("compose", () => \`Hello, \${input.name}!\`);
  for (let second = 1; second <= 30; second++) {
    await run.step(\`second-\${second}\`, () => new Promise<void>((resolve) => setTimeout(resolve, 1_000)));
    await run.progress({ second });
  }
  console.log(greeting, \`(attempt \${run.attempt})\`);
  return { greeting };
});
`;

const IGNORED = "outlive.db*";

export const initCommand: Register = (program, run) => {
  program
    .command("init")
    .description("write a configuration and a first job to this folder")
    .action(
      run(async ({ terminal }) => {
        const written: string[] = [];
        const kept: string[] = [];
        // Node takes a .ts file for CommonJS where package.json does not say otherwise (`npm init` says "commonjs"); .mts never.
        const extension = isModuleFolder() ? "ts" : "mts";
        const there = CONFIG_FILES.find((name) => existsSync(resolve(name)));
        const files = [
          [there ?? `outlive.config.${extension}`, configText(extension)],
          [`jobs/hello.${extension}`, JOB],
        ] as const;
        for (const [name, text] of files) {
          (writeNew(name, text) ? written : kept).push(name);
        }
        if (ignore()) written.push(".gitignore");
        const next = [
          "npx outlive work",
          `npx outlive enqueue hello '{"name":"world"}'      (in another terminal)`,
          "npx outlive status",
          "kill -9 the worker that runs it, and: npx outlive incidents",
        ];
        terminal.answer({ written, kept, next }, () =>
          [
            ...written.map((name) => `${terminal.style("green", "wrote")}  ${name}`),
            ...kept.map((name) => `${terminal.style("yellow", "kept")}   ${name} (it exists already)`),
            "",
            "Next:",
            ...next.map((line) => `  ${line}`),
          ].join("\n"),
        );
      }),
    );
};

/** Whether the nearest package.json says that this folder's modules are ES modules. */
function isModuleFolder(folder = process.cwd()): boolean {
  const path = join(folder, "package.json");
  if (existsSync(path)) return (JSON.parse(readFileSync(path, "utf8")) as { type?: unknown }).type === "module";
  return dirname(folder) !== folder && isModuleFolder(dirname(folder));
}

function writeNew(name: string, text: string): boolean {
  const path = resolve(name);
  if (existsSync(path)) return false;
  inThisFolder(() => {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text, { flag: "wx" });
  });
  return true;
}

function inThisFolder(write: () => void): void {
  try {
    write();
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.storeReadOnly,
      `init can't write to ${process.cwd()}: ${(thrown as Error).message}.`,
      "Grant this user write permission for the folder, or run init in another one.",
      { folder: process.cwd() },
      { cause: thrown },
    );
  }
}

/** The database must not be committed by accident. */
function ignore(): boolean {
  const path = resolve(".gitignore");
  const text = existsSync(path) ? readFileSync(path, "utf8") : "";
  if (text.split("\n").includes(IGNORED)) return false;
  inThisFolder(() => writeFileSync(path, `${text}${text === "" || text.endsWith("\n") ? "" : "\n"}${IGNORED}\n`));
  return true;
}
