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

{{- define "nfs-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nfs-operator.labels" -}}
{{ include "nfs-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
{{- if eq .Release.Namespace "kube-system" -}}
{{- fail "namespace kube-system: the operator may create Secrets and Leases in its namespace, and those of kube-system control the cluster; use a namespace of its own, such as nfs-operator-system" -}}
{{- end -}}
{{- end -}}

{{/* The provisioner names of the operator, as a list in CEL. */}}
{{- define "nfs-operator.provisioners" -}}
{{- $names := prepend (keys .Values.operator.provisionerAliases | sortAlpha) .Values.operator.provisionerName -}}
{{- range .Values.operator.extraEnv -}}
{{- if and (eq .name "PROVISIONER_NAME") .value -}}
{{- $names = append $names .value -}}
{{- end -}}
{{- end -}}
['{{ $names | uniq | join "', '" }}']
{{- end -}}

{{- define "nfs-operator.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if replicas may stand by. */}}
{{- define "nfs-operator.elects" -}}
{{- if or .Values.leaderElection (gt (int .Values.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{/* Security context of every pod of the chart. */}}
{{- define "nfs-operator.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAs.user }}
runAsGroup: {{ .Values.runAs.group }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Security context of every container of the chart. */}}
{{- define "nfs-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The class that `helm test` uses; empty if there is none. */}}
{{- define "nfs-operator.testClass" -}}
{{- default (keys .Values.storageClasses | sortAlpha | first | default "") .Values.tests.storageClass -}}
{{- end -}}
