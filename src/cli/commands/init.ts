// `outlive init`: a configuration and a first job that runs. It never overwrites a file.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { CONFIG_FILES } from "../../engine/config-file.ts";
import type { Register } from "../main.ts";

const config = (extension: string): string => `import { defineConfig } from "outlive";

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
  // A step runs once. Kill the worker here, and the next attempt goes on behind the last finished step.
  const greeting = await run.step("compose", () => \`Hello, \${input.name}!\`);
  for (let second = 1; second <= 10; second++) {
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
    .description("a configuration and a first job that runs, in this folder")
    .action(
      run(async ({ terminal }) => {
        const written: string[] = [];
        const kept: string[] = [];
        // Node takes a .ts file for CommonJS where package.json does not say otherwise (`npm init` says "commonjs"); .mts never.
        const extension = isModuleFolder() ? "ts" : "mts";
        const there = CONFIG_FILES.find((name) => existsSync(resolve(name)));
        const files = [
          [there ?? `outlive.config.${extension}`, config(extension)],
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
            ...kept.map((name) => `${terminal.style("yellow", "kept")}   ${name} (it was there already)`),
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
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text, { flag: "wx" });
  return true;
}

/** The database must not be committed by accident. */
function ignore(): boolean {
  const path = resolve(".gitignore");
  const text = existsSync(path) ? readFileSync(path, "utf8") : "";
  if (text.split("\n").includes(IGNORED)) return false;
  writeFileSync(path, `${text}${text === "" || text.endsWith("\n") ? "" : "\n"}${IGNORED}\n`);
  return true;
}
