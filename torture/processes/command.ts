// The command line of the rig of processes: a store of its own on a small disk or on a server of its own, the faults of its surroundings,
// and the run.
import { cpSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { run } from "../../src/torture/main.ts";
import { scratchFolder, scratchSchema } from "../../src/torture/place.ts";
import type { Plan } from "../../src/torture/rig.ts";
import { wholeNumber } from "../arguments.ts";
import { Proxy } from "./proxy.ts";
import { startServer } from "./server.ts";
import { fillingDisk, mountSmallDisk } from "./small-disk.ts";

const CLI = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url));
/** More than enough for the jobs of a run of so many kills; it is in memory, but takes only what is on it. */
const diskMegabytes = (kills: number): number => 256 + Math.ceil(kills / 5);
/** That, with 1 GB of write-ahead log, and tables that are vacuumed now and then. */
const serverDiskMegabytes = (kills: number): number => 2_560 + Math.ceil(kills / 3);

/** On every store. */
const RIGS_OF_THEIR_OWN = [
  "power loss: a rig of its own, --power-loss (SQLite)",
  "kill at the N-th write or sync: a rig of its own, --kill-at-call (SQLite)",
];

interface Surroundings extends Pick<Plan, "url" | "directUrl" | "schema" | "faults" | "notRun"> {
  /** Puts the store, which goes with the process, where it stays. */
  readonly copyTo: (folder: string) => void | Promise<void>;
}

const STORES: Readonly<Record<string, (kills: number, folder: string) => Promise<Surroundings>>> = {
  sqlite: onSqlite,
  postgres: onPostgres,
};

export async function processes(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      store: { type: "string", default: "sqlite" },
      kills: { type: "string", default: "200" },
      seed: { type: "string", default: "1" },
      workers: { type: "string", default: "6" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
    },
  });
  const surround = STORES[values.store];
  if (!surround) throw new Error(`--store ${values.store}: use ${Object.keys(STORES).join(" or ")}.`);
  const kills = wholeNumber(values.kills, "kills");
  const [seed, workers] = [wholeNumber(values.seed, "seed"), wholeNumber(values.workers, "workers")];
  const scratch = scratchFolder(tmpdir(), values.keep);
  const { folder } = scratch;
  const { copyTo, ...surroundings } = await surround(kills, folder);
  const seats = { worker: workers, producer: 2, supervisor: 1 };
  const code = await run(
    { ...surroundings, store: values.store, kills, seed, seats, folder, cli: CLI },
    {
      json: values.json,
      keep() {
        scratch.keep();
        return copyTo(folder);
      },
      again: `npm run torture -- --store ${values.store} --kills ${kills} --seed ${seed} --workers ${workers}`,
    },
  );
  if (code === 0 && values.keep) await copyTo(folder);
  return code === 0;
}

async function onSqlite(kills: number, folder: string): Promise<Surroundings> {
  const disk = mountSmallDisk(diskMegabytes(kills));
  const at = typeof disk === "string" ? folder : disk.folder;
  const url = `sqlite:${join(at, "torture.db")}`;
  return {
    url,
    directUrl: url,
    schema: null,
    faults: typeof disk === "string" ? [] : [fillingDisk(disk)],
    notRun: typeof disk === "string" ? [disk, ...RIGS_OF_THEIR_OWN] : RIGS_OF_THEIR_OWN,
    copyTo(kept) {
      if (at !== folder) cpSync(at, kept, { recursive: true });
    },
  };
}

/** Through a proxy, all but the judge, who must see what is there. */
async function onPostgres(kills: number): Promise<Surroundings> {
  const disk = mountSmallDisk(serverDiskMegabytes(kills));
  const server = await startServer(typeof disk === "string" ? null : disk);
  const schema = await scratchSchema(server.url);
  const { proxy, url } = await Proxy.before(server.url);
  return {
    url,
    directUrl: server.url,
    schema,
    faults: [...server.faults, ...proxy.faults],
    notRun: [
      ...(typeof disk === "string" ? [disk] : []),
      "power loss of a server: PostgreSQL's own write-ahead log is not replayed",
      ...RIGS_OF_THEIR_OWN,
    ],
    copyTo: (kept) => server.copyTo(kept, schema),
  };
}
