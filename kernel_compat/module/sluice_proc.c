// SPDX-License-Identifier: GPL-2.0
/* /proc/net/sluice: this namespace's counters, then its sockets and their sessions. */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "sluice_sock.h"

static const char *const kNames[SLUICE_COUNTS] = {
	[SLUICE_FRAMES_IN] = "frames_in",
	[SLUICE_FRAMES_OUT] = "frames_out",
	[SLUICE_FRAMES_DROPPED] = "frames_dropped",
	[SLUICE_FRAMES_OF_NOBODY] = "frames_of_nobody",
	[SLUICE_FRAMES_NOT_SENT] = "frames_not_sent",
	[SLUICE_REFUSALS] = "refusals",
	[SLUICE_REFUSALS_HELD_BACK] = "refusals_held_back",
	[SLUICE_MESSAGES_IN] = "messages_in",
	[SLUICE_MESSAGES_OUT] = "messages_out",
	[SLUICE_BYTES_COPIED_IN] = "bytes_copied_in",
	[SLUICE_BYTES_COPIED_OUT] = "bytes_copied_out",
	[SLUICE_BYTES_LENT] = "bytes_lent",
	[SLUICE_SESSIONS_BEGUN] = "sessions_begun",
	[SLUICE_SESSIONS_ENDED] = "sessions_ended",
	[SLUICE_SESSIONS_REFUSED] = "sessions_refused",
	[SLUICE_CALLERS_REFUSED] = "callers_refused",
	[SLUICE_MESSAGES_HELD_BACK] = "messages_held_back",
	[SLUICE_PULLS_STALLED] = "pulls_stalled",
	[SLUICE_ACCESSES_REFUSED] = "accesses_refused",
	[SLUICE_REGIONS_DOUBTED] = "regions_doubted",
	[SLUICE_REGIONS_GONE] = "regions_gone",
	[SLUICE_SPAN_TURNS] = "span_turns",
	[SLUICE_FRAMES_HELD_BACK] = "frames_held_back",
};

static void show_counters(struct seq_file *file, struct sluice_net *sn)
{
	int which, cpu;

	for (which = 0; which < SLUICE_COUNTS; ++which) {
		u64 sum = 0;

		for_each_possible_cpu(cpu)
			sum += per_cpu_ptr(sn->counters, cpu)->count[which];
		seq_printf(file, "%s %llu\n", kNames[which], sum);
	}
}

static void show_socket(struct seq_file *file, struct sluice_sock *ss)
{
	struct slp_view view;
	u32 i;

	spin_lock(&ss->lock);
	seq_printf(file, "port %u %u uid %u peers %u queued %u%s\n", ss->ifindex, ss->port,
		   from_kuid_munged(seq_user_ns(file), ss->sk.sk_uid), ss->peer_count, sk_rmem_alloc_get(&ss->sk),
		   ss->leaving ? " leaving" : "");
	for (i = 0; i < ss->peers_end; ++i) {
		struct sluice_peer *peer = ss->peers[i];
		const struct slp_counters *counters;

		if (!peer)
			continue;
		counters = slp_counters_of(peer->session);
		slp_view_of(peer->session, &view);
		seq_printf(file, "  peer %pM %u state %u why %u sent %llu received %llu resent %llu rtt_ns %llu window %llu\n",
			   peer->mac, peer->port, slp_state_of(peer->session), peer->why, counters->frames_sent,
			   counters->frames_received, counters->resent, view.srtt_ns, view.window_bytes);
	}
	spin_unlock(&ss->lock);
}

static int show(struct seq_file *file, void *nothing)
{
	struct sluice_net *sn = sluice_net_of(seq_file_single_net(file));
	struct sluice_sock *ss;
	int i;

	show_counters(file, sn);
	for (i = 0; i < SLUICE_PORT_BUCKETS; ++i) {
		spin_lock_bh(&sn->lock);
		hlist_for_each_entry(ss, &sn->ports[i], port_node)
			show_socket(file, ss);
		spin_unlock_bh(&sn->lock);
	}
	return 0;
}

int sluice_proc_init(struct net *net)
{
	return proc_create_net_single("sluice", 0444, net->proc_net, show, NULL) ? 0 : -ENOMEM;
}

void sluice_proc_exit(struct net *net)
{
	remove_proc_entry("sluice", net->proc_net);
}
