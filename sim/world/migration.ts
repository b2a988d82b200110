// Opening the file as `open()` does before anything else: whoever comes first makes the tables. In some seeds the first ones die
// in the middle of it, after any of its statements; then nothing of it may be there.
import type { Database } from "../../src/stores/sqlite/database.ts";
import { migrate, SCHEMA_VERSION, schemaVersion } from "../../src/stores/sqlite/schema.ts";
import { demand } from "../oracle/violation.ts";
import type { SimProcess } from "./process.ts";
import type { World } from "./world.ts";

export class Migration {
  readonly #world: World;
  readonly #afterwards: (db: Database) => void;
  #deathsLeft: number;
  #done = false;

  /** `afterwards`: the tables are there for the first time. */
  constructor(world: World, afterwards: (db: Database) => void) {
    this.#world = world;
    this.#afterwards = afterwards;
    this.#deathsLeft = world.temper.killMigration;
  }

  /** Brings the file to the present schema, or dies on the way. */
  open(process: SimProcess): void {
    if (this.#done) return;
    const { disk, faults, story } = this.#world;
    if (this.#deathsLeft > 0) {
      this.#deathsLeft--;
      if (faults.strikes("killMigration", process.name)) {
        const before = schemaVersion(disk.db);
        const after = dieWhileMigrating(disk.connect(), process.random.fork("migration").next());
        story.tell(process.name, `migrates and dies after ${after} statements`);
        process.kill("nemesis");
        const version = schemaVersion(disk.db);
        demand(version === before || version === SCHEMA_VERSION, () => `half a migration: schema ${version}`);
        const { n } = disk.db
          .sql("SELECT count(*) AS n FROM sqlite_schema WHERE name LIKE 'outlive_%' AND name <> 'outlive_meta'")
          .get() as { n: number };
        demand(version > 0 || n === 0, () => `${n} tables and indexes of a migration that did not happen`);
        return;
      }
    }
    migrate(disk.connect());
    demand(schemaVersion(disk.db) === SCHEMA_VERSION, () => `schema ${schemaVersion(disk.db)} after a migration`);
    this.#done = true;
    this.#afterwards(disk.db);
  }
}

/** Answers after how many of the statements of a script it died. */
function dieWhileMigrating(db: Database, chance: number): number {
  let died = 0;
  const dying = new Proxy(db, {
    get(target, name) {
      if (name === "inTransaction") return target.inTransaction;
      if (name === "exec")
        return (script: string) => {
          const statements = script.split(/;\s*\n/).filter((statement) => statement.trim() !== "");
          if (statements.length < 3) return target.exec(script);
          died = Math.floor(chance * (statements.length + 1));
          for (const statement of statements.slice(0, died)) target.exec(statement);
          throw new Error("killed");
        };
      const member: unknown = Reflect.get(target, name, target);
      return typeof member === "function" ? (member.bind(target) as unknown) : member;
    },
  });
  try {
    migrate(dying);
  } catch (thrown) {
    if ((thrown as Error).message !== "killed") throw thrown;
  }
  return died;
}
