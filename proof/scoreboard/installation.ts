// The contenders' packages: installed once next to the scoreboard, exactly as in its lock file. A native add-on is built by the machine's
// own Node, whose headers a machine has, and not by the project's; what runs it is then that Node, on a program without types.
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { type Contender, contenders } from "./contenders.ts";
import { ownRuntime, type Runtime } from "./processes.ts";
import { COMMIT } from "./results.ts";

const folder = fileURLToPath(new URL("./", import.meta.url));
const root = fileURLToPath(new URL("../../", import.meta.url));
const ADD_ON = "better-sqlite3";

export interface Installation {
  readonly runtimes: Readonly<Record<string, Runtime>>;
  readonly versions: Readonly<Record<string, string>>;
  readonly absent: Readonly<Record<string, string>>;
  readonly nodes: string;
}

/** `wanted`: the contenders that are measured. For the others nothing is built, which takes minutes. */
export function install(wanted: readonly string[]): Installation {
  const env = machineEnvironment();
  if (contenders.some((each) => each.package !== null && versionOf(each.package) === undefined))
    // Not `ci`: where a mirror lacks the add-ons of other platforms that the lock file can't name, it refuses the whole file.
    npm(
      [
        "install",
        "--no-save",
        "--ignore-scripts",
        "--engine-strict=false",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
      ],
      env,
    );
  buildOutlive();
  const versions: Record<string, string> = {};
  const runtimes: Record<string, Runtime> = {};
  const absent: Record<string, string> = {};
  let nodes = `Node ${process.versions.node}`;
  for (const each of contenders) {
    versions[each.id] = installedVersion(each);
    if (!each.native) {
      runtimes[each.id] = ownRuntime;
      continue;
    }
    const machine = machineNode(env);
    if (machine === null || !builds(machine, env, wanted.includes(each.id))) {
      if (!wanted.includes(each.id)) continue;
      absent[each.id] = `${ADD_ON} ${versionOf(ADD_ON)} could not be built for the machine's own Node`;
      continue;
    }
    runtimes[each.id] = { execPath: machine.path, program: programWithoutTypes() };
    nodes += `; ${each.name} on Node ${machine.version} with ${ADD_ON} ${versionOf(ADD_ON)}`;
  }
  return { runtimes, versions, absent, nodes };
}

/** As it is published, next to the packages of the others; drivers are those of the repository. */
function buildOutlive(): void {
  const place = join(folder, "node_modules", ".outlive");
  mkdirSync(place, { recursive: true });
  execFileSync(process.execPath, [join(root, "scripts/build.mjs"), "--code", join(place, "code")], { cwd: root });
  if (!existsSync(join(place, "node_modules"))) symlinkSync(join(root, "node_modules"), join(place, "node_modules"));
}

/** A lock file that was not honoured must not go unnoticed: npm picks old majors for an old Node if it may. */
function installedVersion({ package: name }: Contender): string {
  if (name === null) return ownCommit();
  const { dependencies } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
    dependencies: Record<string, string>;
  };
  const installed = versionOf(name);
  if (installed !== dependencies[name])
    throw new Error(
      `${name} ${dependencies[name]} is wanted and ${installed} is installed: remove proof/scoreboard/node_modules.`,
    );
  return installed!;
}

/** What is not committed is not what the commit measures. */
function ownCommit(): string {
  const git = (...args: string[]): string => execFileSync("git", args, { cwd: folder, encoding: "utf8" }).trim();
  try {
    const changed = git("status", "--porcelain", "--untracked-files=no") !== "";
    return `${COMMIT}${git("rev-parse", "--short=10", "HEAD")}${changed ? " with changes" : ""}`;
  } catch {
    return "not a git checkout";
  }
}

function versionOf(name: string): string | undefined {
  const file = join(folder, "node_modules", name, "package.json");
  return existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version : undefined;
}

interface Machine {
  readonly path: string;
  readonly version: string;
}

function machineNode(env: NodeJS.ProcessEnv): Machine | null {
  const path = (env["PATH"] ?? "")
    .split(delimiter)
    .map((each) => join(each, "node"))
    .find(existsSync);
  if (path === undefined) return null;
  return { path, version: execFileSync(path, ["-p", "process.versions.node"], { encoding: "utf8" }).trim() };
}

function builds({ path }: Machine, env: NodeJS.ProcessEnv, isWanted: boolean): boolean {
  const loads = (): boolean =>
    spawnSync(path, ["-e", `new (require("${ADD_ON}"))(":memory:").close()`], { cwd: folder, env }).status === 0;
  if (loads()) return true;
  if (!isWanted) return false;
  process.stderr.write(`Building ${ADD_ON}, once: some minutes ...\n`);
  npm(["rebuild", ADD_ON, "--loglevel=error"], env);
  return loads();
}

function npm(args: readonly string[], env: NodeJS.ProcessEnv): void {
  const { status } = spawnSync("npm", args, { cwd: folder, env, stdio: ["ignore", 2, 2] });
  if (status !== 0) process.stderr.write(`npm ${args[0]} ended with ${status}.\n`);
}

/** Without what `npm run` puts in front: the project's own Node, and npm's options for this project. */
function machineEnvironment(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !name.toLowerCase().startsWith("npm_"));
  const path = (process.env["PATH"] ?? "").split(delimiter).filter((each) => !each.includes("node_modules"));
  return { ...Object.fromEntries(kept), PATH: path.join(delimiter) };
}

/** The same program for a Node that can't strip types; inside node_modules, so that packages are found from there. */
function programWithoutTypes(): string {
  const target = join(folder, "node_modules", ".without-types", "scoreboard");
  const files = ["../bench/program.ts", "program.ts", "peers/load.ts", "peers/plainjob.ts"];
  for (const file of files) {
    const text = stripTypeScriptTypes(readFileSync(join(folder, file), "utf8")).replace(
      /(from "[^"]+)\.ts"/g,
      '$1.mjs"',
    );
    const out = join(target, file.replace(/\.ts$/, ".mjs"));
    mkdirSync(dirname(out), { recursive: true });
    writeFileSync(out, text);
  }
  return join(target, "program.mjs");
}
