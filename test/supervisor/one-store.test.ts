// One rule for the store: a web process that opens or connects with the configuration and `outlive work` in its folder always meet
// in the same one.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { attach } from "../../src/index.ts";
import { VERSION } from "../../src/platform/identity.ts";
import { untilTrue } from "../support/processes.ts";
import { Fleet } from "./fleet.ts";

const source = (name: string): string => JSON.stringify(fileURLToPath(new URL(`../../src/${name}`, import.meta.url)));

const FILES = {
  "outlive.config.ts": `import { defineConfig } from ${source("index.ts")};
export default defineConfig({ store: "sqlite:./configured.db", jobs: "jobs/*.ts" });`,
  "jobs/note.ts": `import { job } from ${source("index.ts")};
export const note = job<string>("note");
note.handle(() => {});`,
  "web.ts": `import { open } from ${source("index.ts")};
import { connect } from ${source("client.ts")};
import config from "./outlive.config.ts";
import { note } from "./jobs/note.ts";
const engine = await open(config, { jobs: [note], logger: false });
await engine.enqueue(note, "opened");
await engine.close();
const client = await connect(config, { jobs: [note] });
await client.enqueue(note, "connected");
await client.close();`,
};

for (const [title, variable, file, from] of [
  ["the store that OUTLIVE_STORE names", "sqlite:./named.db", "named.db", "OUTLIVE_STORE"],
  ["the store of the configuration", "", "configured.db", "outlive.config.ts:2"],
] as const) {
  test(`open(config), connect(config) and outlive work use ${title}, and work prints it with the version`, async (t) => {
    const fleet = new Fleet(t);
    const { folder } = fleet.place;
    mkdirSync(join(folder, "jobs"), { recursive: true });
    for (const [name, text] of Object.entries(FILES)) writeFileSync(join(folder, name), text);
    const env = { OUTLIVE_STORE: variable };
    execFileSync(process.execPath, ["--disable-warning=ExperimentalWarning", "web.ts"], {
      cwd: folder,
      env: { ...process.env, ...env },
    });
    const work = fleet.work({ globs: [], env });
    const [line] = await work.said(/^outlive .* starts 1 worker/);
    assert.equal(line!["version"], VERSION);
    assert.equal(line!["store"], `sqlite:./${file}`);
    assert.ok(line!.message.endsWith(` for jobs/*.ts on sqlite:./${file} (from ${from})`), line!.message);
    await using engine = await attach(`sqlite:${join(folder, file)}`, { logger: false });
    await untilTrue(
      async () => (await engine.list({ state: "succeeded" })).jobs.length,
      (count) => count === 2,
      "both jobs succeeded",
    );
    for (const other of ["named.db", "configured.db"]) assert.equal(existsSync(join(folder, other)), other === file);
  });
}
