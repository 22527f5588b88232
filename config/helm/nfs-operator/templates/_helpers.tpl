{{/* The full name, which is the name of most objects. */}}
{{- define "nfs-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The namespace of the objects. */}}
{{- define "nfs-operator.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "nfs-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nfs-operator.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- $labels := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/part-of" "nfs-operator" "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" $chart -}}
{{- toYaml (merge (include "nfs-operator.selectorLabels" . | fromYaml) .Values.commonLabels $labels) -}}
{{- end -}}

{{/* The labels of the operator's Deployment and of its pods. */}}
{{- define "nfs-operator.operatorLabels" -}}
{{- toYaml (merge (include "nfs-operator.labels" . | fromYaml) (dict "app.kubernetes.io/component" "operator")) -}}
{{- end -}}

{{- define "nfs-operator.podLabels" -}}
{{- toYaml (merge (include "nfs-operator.selectorLabels" . | fromYaml) .Values.podLabels (include "nfs-operator.operatorLabels" . | fromYaml)) -}}
{{- end -}}

{{- define "nfs-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "nfs-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: set the name of an existing ServiceAccount, or let the chart create one (serviceAccount.create)" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Fails in the namespace in which the operator refuses to run. */}}
{{- define "nfs-operator.checkNamespace" -}}
{{- if eq (include "nfs-operator.namespace" .) "kube-system" -}}
{{- fail "namespace kube-system: the operator may create Secrets and Leases in its namespace, and those of kube-system control the cluster; use a namespace of its own, such as nfs-operator-system" -}}
{{- end -}}
{{- end -}}

{{/* The provisioner names of the operator, as a list in CEL. */}}
{{- define "nfs-operator.provisioners" -}}
{{- $names := concat .Values.operator.provisionerNames (keys .Values.operator.provisionerAliases | sortAlpha) -}}
{{- range .Values.operator.extraEnv -}}
{{- if and (eq .name "PROVISIONER_NAME") .value -}}
{{- $names = append $names .value -}}
{{- end -}}
{{- end -}}
['{{ $names | uniq | join "', '" }}']
{{- end -}}

{{/* The provisioner names that can be those of a CSIDriver, as a list in JSON. */}}
{{- define "nfs-operator.csiDrivers" -}}
{{- $drivers := list -}}
{{- range .Values.operator.provisionerNames -}}
{{- if and (le (len .) 63) (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" .) -}}
{{- $drivers = append $drivers . -}}
{{- end -}}
{{- end -}}
{{ toJson $drivers }}
{{- end -}}

{{- define "nfs-operator.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- with .Values.image -}}
{{- $repository := list $registry .repository | compact | join "/" -}}
{{- if .digest -}}
{{- printf "%s@%s" $repository .digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secrets of the registry, as a list in JSON. Charts write them as names or as objects. */}}
{{- define "nfs-operator.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat .Values.imagePullSecrets (default list .Values.global.imagePullSecrets) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with $secrets | uniq }}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* "true" if replicas may stand by. */}}
{{- define "nfs-operator.elects" -}}
{{- if or .Values.leaderElection (gt (int .Values.replicaCount) 1) -}}true{{- end -}}
{{- end -}}

{{/* What every pod of the chart has in common. */}}
{{- define "nfs-operator.podSpec" -}}
# The operator finds the API server through the environment of its pod; it needs no other Service
# there.
enableServiceLinks: false
{{- with include "nfs-operator.imagePullSecrets" . }}
imagePullSecrets: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The class that `helm test` uses; empty if there is none. */}}
{{- define "nfs-operator.testClass" -}}
{{- default (keys .Values.storageClasses | sortAlpha | first | default "") .Values.tests.storageClass -}}
{{- end -}}
