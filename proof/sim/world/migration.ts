// Opening the file as `open()` does before anything else: the first process makes the tables. In some seeds the first ones die
// in the middle of it, after any statement of any migration. A new file gets its tables in one transaction, so then it has none.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import {
  columnsMadeBy,
  columnsOf,
  migrate,
  MIGRATIONS,
  SCHEMA_VERSION,
  schemaVersion,
  stepsOf,
} from "../../../src/stores/sqlite/schema.ts";
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
    this.#deathsLeft = world.profile.killMigration;
  }

  /** Whether the tables are there, with those of the simulator. */
  get done(): boolean {
    return this.#done;
  }

  /** Brings the file to the present schema, or dies on the way. */
  open(process: SimProcess): void {
    if (this.#done) return;
    const { disk, faults, story } = this.#world;
    if (this.#deathsLeft > 0) {
      this.#deathsLeft--;
      if (faults.strikes("killMigration", process.name)) {
        const before = schemaVersion(disk.db);
        const { number, after } = dieWhileMigrating(disk.connect(), process.random.fork("migration").next());
        story.tell(process.name, `migrates and dies after ${after} statements of migration ${number}`);
        process.kill("nemesis");
        // Each migration of an older file is a transaction of its own.
        demandExactly(disk.db, before === 0 ? 0 : number - 1);
        return;
      }
    }
    migrate(disk.connect());
    demand(schemaVersion(disk.db) === SCHEMA_VERSION, () => `schema ${schemaVersion(disk.db)} after a migration`);
    this.#done = true;
    this.#afterwards(disk.db);
  }
}

/** The file has the tables of the first migrations, up to this number, and nothing of the next. */
function demandExactly(db: Database, whole: number): void {
  const version = schemaVersion(db);
  demand(version === whole, () => `schema ${version} in the place of ${whole}`);
  const kept = stepsOf(db).filter(({ stored }) => stored !== null).length;
  demand(kept === whole, () => `${kept} checksums of ${whole} migrations`);
  const found = [...columnsOf((sql) => db.sql(sql).all())].filter((line) => !line.startsWith("outlive_meta."));
  const wrong = columnsMadeBy(MIGRATIONS.slice(0, whole)).symmetricDifference(new Set(found));
  demand(wrong.size === 0, () => `half a migration: ${[...wrong].join(", ")}`);
}

/** Returns in which migration, and after how many of its statements, the process died. */
function dieWhileMigrating(db: Database, chance: number): { readonly number: number; readonly after: number } {
  const statementsOf = (sql: string): string[] => sql.split(/;\s*\n/).filter((statement) => statement.trim() !== "");
  let whole = schemaVersion(db);
  const places = MIGRATIONS.slice(whole).reduce((sum, { sql }) => sum + statementsOf(sql).length + 1, 0);
  let after = Math.floor(chance * places);
  const dying = new Proxy(db, {
    get(target, name) {
      if (name === "inTransaction") return target.inTransaction;
      if (name === "exec")
        return (script: string) => {
          if (script !== MIGRATIONS[whole]?.sql) return target.exec(script);
          const statements = statementsOf(script);
          for (const statement of statements.slice(0, after)) target.exec(statement);
          if (after <= statements.length) throw new Error("killed");
          after -= statements.length + 1;
          whole++;
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
  return { number: whole + 1, after };
}
