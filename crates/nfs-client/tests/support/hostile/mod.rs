//! A malicious server: a small NFSv4.0 server for an arbitrary tree in memory.

mod tree;
mod wire;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub use self::tree::{DIRECTORY, FILE, Listing, MOVED, Tree};
use self::wire::{Reader, Writer};

const NOENT: u32 = 2;
const EXIST: u32 = 17;
const NOTDIR: u32 = 20;
const NOTEMPTY: u32 = 66;
const STALE: u32 = 70;
const SAME: u32 = 10_009;
const MINOR_VERS_MISMATCH: u32 = 10_021;
const REP_TOO_BIG: u32 = 10_066;
const NOT_SAME: u32 = 10_027;
/// Not a status: the request is not answered.
const NO_REPLY: u32 = u32::MAX;
/// Operations that work on a referral: GETATTR of a few attributes, PUTFH, PUTROOTFH, RESTOREFH, SAVEFH.
const ON_THE_ABSENT: [u32; 5] = [9, 22, 24, 31, 32];

#[derive(Clone)]
pub struct Hostile {
    pub port: u16,
    tree: Arc<Mutex<Tree>>,
}

/// The state of one COMPOUND.
#[derive(Default)]
struct Progress {
    current: u64,
    saved: u64,
}

impl Hostile {
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            tree: Arc::new(Mutex::new(Tree::new())),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        server
    }

    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock()
    }

    async fn serve(self, mut stream: TcpStream) {
        while let Ok(header) = stream.read_u32().await {
            let mut call = vec![0; (header & 0x7fff_ffff) as usize];
            if stream.read_exact(&mut call).await.is_err() {
                return;
            }
            let mut call = Reader(&call);
            let xid = call.u32();
            call.fixed(20);
            for _ in 0..2 {
                call.u32();
                call.opaque();
            }
            call.opaque();
            let minor = call.u32();
            let mut reply = Writer::default();
            reply.u32(xid).u32(1).u32(0).u32(0).u32(0).u32(0);
            if minor == 0 {
                let Some(results) = self.compound(call) else { continue };
                reply.raw(&results);
            } else {
                reply.u32(MINOR_VERS_MISMATCH).u32(0).u32(0);
            }
            let mut record = Writer::default();
            record.u32(reply.0.len() as u32 | 1 << 31).raw(&reply.0);
            if stream.write_all(&record.0).await.is_err() {
                return;
            }
        }
    }

    fn compound(&self, mut call: Reader<'_>) -> Option<Vec<u8>> {
        let mut tree = self.tree();
        tree.arrived += 1;
        let count = call.u32();
        let (mut results, mut done, mut last) = (Writer::default(), 0, 0);
        let mut progress = Progress::default();
        for _ in 0..count {
            let number = call.u32();
            let mut result = Writer::default();
            if let Some((_, status)) = tree.fails_once.take_if(|(failing, _)| *failing == number) {
                results.u32(number).u32(status);
                (done, last) = (done + 1, status);
                break;
            }
            last = match operation(&mut tree, &mut progress, number, &mut call, &mut result) {
                Ok(()) => 0,
                Err(NO_REPLY) => return None,
                Err(status) => status,
            };
            results.u32(number).u32(last);
            done += 1;
            if last != 0 {
                break;
            }
            results.raw(&result.0);
        }
        let mut reply = Writer::default();
        reply.u32(last).u32(0).u32(done).raw(&results.0);
        Some(reply.0)
    }
}

fn child(tree: &Tree, id: u64, name: &[u8]) -> Result<u64, u32> {
    let directory = tree.objects.get(&id).ok_or(STALE)?;
    if directory.kind != DIRECTORY {
        return Err(NOTDIR);
    }
    let name = tree.stored(id, name).ok_or(NOENT)?;
    directory.children.get(&name).copied().ok_or(NOENT)
}

fn settable(call: &mut Reader<'_>, tree: &mut Tree, id: u64) {
    let set = call.bitmap();
    let values = call.opaque();
    let mut values = Reader(&values);
    let object = tree.at(id);
    for attribute in set {
        match attribute {
            4 => object.content.resize(values.u64() as usize, 0),
            33 => object.mode = values.u32(),
            36 => object.owner.0 = String::from_utf8(values.opaque()).unwrap(),
            37 => object.owner.1 = String::from_utf8(values.opaque()).unwrap(),
            // Set to the time of the client.
            48 | 54 => {
                assert_eq!(values.u32(), 1);
                values.fixed(12);
            }
            other => panic!("attribute {other} is set"),
        }
    }
}

/// Executes one operation. Returns its status, and writes its results to `result`.
fn operation(
    tree: &mut Tree,
    at: &mut Progress,
    number: u32,
    call: &mut Reader<'_>,
    result: &mut Writer,
) -> Result<(), u32> {
    let absent = tree.objects.get(&at.current).is_some_and(|object| object.absent);
    if absent && !ON_THE_ABSENT.contains(&number) {
        return Err(MOVED);
    }
    match number {
        22 => {
            let handle = call.opaque();
            at.current = Reader(&handle).u64();
            let object = tree.objects.get(&at.current).ok_or(STALE)?;
            return object.refuses.map_or(Ok(()), Err);
        }
        24 => at.current = Tree::ROOT,
        32 => at.saved = at.current,
        10 => {
            result.u32(8).u64(at.current);
        }
        9 => {
            let wanted = call.bitmap();
            tree.ask(at.current, &wanted)?;
            result.raw(&tree.attributes(at.current, &wanted, false));
        }
        15 => {
            at.current = child(tree, at.current, &call.opaque())?;
            return tree.at(at.current).refuses.map_or(Ok(()), Err);
        }
        17 | 37 => {
            let wanted = call.bitmap();
            let mut given = Writer::default();
            given.bitmap(&wanted).opaque(&call.opaque());
            let same = tree.attributes(at.current, &wanted, false) == given.0;
            return match (number, same) {
                (37, false) => Err(NOT_SAME),
                (17, true) => Err(SAME),
                _ => Ok(()),
            };
        }
        26 => {
            let cookie = call.u64();
            call.fixed(12);
            if call.u32() as usize > tree.longest_reply {
                return Err(REP_TOO_BIG);
            }
            let wanted = call.bitmap();
            if cookie > 0 && tree.forgotten_cookies > 0 {
                tree.forgotten_cookies -= 1;
                return Err(NOT_SAME);
            }
            tree.ask_listed(at.current, &wanted)?;
            tree.refill(at.current);
            result.raw(&tree.list(at.current, cookie, &wanted));
            if let Some((_, change)) = tree.on_listing.take_if(|(listed, _)| *listed == at.current) {
                change(tree);
            }
        }
        25 => {
            call.fixed(16);
            let (offset, count) = (call.u64() as usize, call.u32() as usize);
            let object = tree.at(at.current);
            if object.silent_from.is_some_and(|from| offset >= from) {
                return Err(NO_REPLY);
            }
            let content = &object.content;
            let end = content.len().min(offset + count);
            result
                .u32(u32::from(end == content.len()))
                .opaque(&content[offset.min(end)..end]);
        }
        35 => {
            result.u64(5).u64(5);
        }
        34 => {
            call.fixed(16);
            settable(call, tree, at.current);
            result.bitmap(&[]);
        }
        _ => return change(tree, at, number, call, result),
    }
    Ok(())
}

fn change(
    tree: &mut Tree,
    at: &mut Progress,
    number: u32,
    call: &mut Reader<'_>,
    result: &mut Writer,
) -> Result<(), u32> {
    let info = [0; 20];
    match number {
        4 => {
            call.fixed(20);
            result.raw(&[0; 16]);
        }
        20 => {
            call.fixed(20);
            result.raw(&[1; 16]);
        }
        36 => drop(call.fixed(16)),
        6 => {
            assert_eq!(call.u32(), DIRECTORY);
            let name = call.opaque();
            if child(tree, at.current, &name).is_ok() {
                return Err(EXIST);
            }
            at.current = tree.add(at.current, &name, DIRECTORY);
            settable(call, tree, at.current);
            result.raw(&info).bitmap(&[]);
        }
        18 => {
            call.fixed(20);
            call.opaque();
            assert_eq!((call.u32(), call.u32()), (1, 1), "files are opened only to be created");
            let created = tree.make(FILE);
            settable(call, tree, created);
            call.u32();
            let name = call.opaque();
            if child(tree, at.current, &name).is_ok() {
                return Err(EXIST);
            }
            at.current = tree.graft(at.current, &name, created);
            // With confirmation, and without a delegation.
            result.raw(&[2; 16]).raw(&info).u32(2).bitmap(&[]).u32(0);
        }
        38 => {
            call.fixed(16);
            let (offset, _) = (call.u64() as usize, call.u32());
            let data = call.opaque();
            let content = &mut tree.at(at.current).content;
            content.resize(content.len().max(offset + data.len()), 0);
            content[offset..offset + data.len()].copy_from_slice(&data);
            result.u32(data.len() as u32).u32(2).u64(0);
        }
        11 => {
            let name = call.opaque();
            if child(tree, at.current, &name).is_ok() {
                return Err(EXIST);
            }
            tree.graft(at.current, &name, at.saved);
            tree.at(at.saved).links += 1;
            result.raw(&info);
        }
        28 => {
            let name = call.opaque();
            let id = child(tree, at.current, &name)?;
            let object = tree.at(id);
            if object.kind == DIRECTORY && (!object.children.is_empty() || object.listing != Listing::Honest) {
                return Err(NOTEMPTY);
            }
            let stored = tree.stored(at.current, &name).ok_or(NOENT)?;
            tree.at(at.current).children.remove(&stored);
            tree.removed.push((at.current, name));
            result.raw(&info);
        }
        29 => {
            let (from, to) = (call.opaque(), call.opaque());
            let id = child(tree, at.saved, &from)?;
            tree.at(at.saved).children.remove(&from);
            tree.graft(at.current, &to, id);
            result.raw(&info).raw(&info);
        }
        other => panic!("operation {other} is not known here"),
    }
    Ok(())
}
