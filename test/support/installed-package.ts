// A project that has installed the package as users do: the tarball of `npm pack`, built from a copy of the checkout, with its declared
// dependencies next to it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, readFile, realpath, symlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../../", import.meta.url));

export interface InstalledPackage<Manifest> {
  /** The project's folder. */
  readonly project: string;
  readonly manifest: Manifest;
  readonly files: readonly string[];
  readonly bytes: number;
  /** Adds a package of the repository's own node_modules to the project. */
  readonly install: (name: string) => Promise<void>;
}

/** Everything is in `folder`, which must exist and belongs to the caller. */
export async function installPackage<Manifest extends { readonly dependencies?: Record<string, string> }>(
  folder: string,
): Promise<InstalledPackage<Manifest>> {
  const { tarball, files, bytes } = await pack(folder);
  const project = join(folder, "project");
  const installed = join(project, "node_modules", "outlive");
  await mkdir(installed, { recursive: true });
  await run("tar", ["-xzf", tarball, "-C", installed, "--strip-components=1"]);
  const manifest = JSON.parse(await readFile(join(installed, "package.json"), "utf8")) as Manifest;
  const install = async (name: string): Promise<void> => {
    const link = join(project, "node_modules", name);
    await mkdir(dirname(link), { recursive: true });
    await symlink(await realpath(join(root, "node_modules", name)), link);
  };
  for (const name of Object.keys(manifest.dependencies ?? {})) await install(name);
  return { project, manifest, files, bytes, install };
}

/** Packs a copy of the checkout, so that a build in the checkout itself is neither used nor disturbed. */
async function pack(folder: string): Promise<{ tarball: string; files: string[]; bytes: number }> {
  const checkout = join(folder, "checkout");
  await mkdir(checkout);
  const leftOut = new Set([".git", "node_modules", "dist"]);
  await cp(root, checkout, { recursive: true, filter: (path) => !leftOut.has(basename(path)) });
  await symlink(join(root, "node_modules"), join(checkout, "node_modules"));
  const options = ["--json", "--loglevel=error", "--pack-destination", folder];
  const { stdout } = await run("npm", ["pack", ...options], { cwd: checkout, env: environment() }).catch(
    (error: { stdout?: string; stderr?: string }) => assert.fail(`npm pack failed:\n${error.stdout}\n${error.stderr}`),
  );
  // What the build prints comes before npm's JSON.
  const [packed] = JSON.parse(stdout.slice(stdout.search(/^\[$/m))) as [
    { filename: string; size: number; files: { path: string }[] },
  ];
  return {
    tarball: join(folder, packed.filename),
    files: packed.files.map(({ path }) => path),
    bytes: packed.size,
  };
}

/** The options of the npm that runs these tests are not those of the npm that they run. */
export function environment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_(?!execpath)/i.test(name)));
}
